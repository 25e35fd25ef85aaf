"""Keys that say which functions and modules trace alike."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbridge.core.canonical import canonical_key

SCALE = 2.0


class Block(nn.Module):
    features: int = 4
    kernel_init: object = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.features, kernel_init=self.kernel_init)(x) * SCALE


def scaled(factor):
    return lambda x: x * factor


def nested(factor):
    def outer(x):
        def inner(y):
            return y * factor

        return inner(x)

    return outer


def named_global(x):
    return x * SCALE


class Plain:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


ALIKE = {
    "modules with fresh initializers": lambda: Block(4, nn.initializers.normal(0.02)),
    "sequential": lambda: nn.Sequential([nn.Dense(3), nn.relu]),
    "closures": lambda: scaled(2.0),
    "nested functions": lambda: nested(2.0),
    "partials": lambda: functools.partial(jnp.sum, axis=1),
    "arrays": lambda: np.arange(4.0),
    "closed-over arrays": lambda: scaled(np.arange(4.0)),
    "jax arrays": lambda: jnp.arange(4.0),
    "dicts of lists": lambda: {"a": [1, (2, None)], "b": "text"},
    "typed keys": lambda: jax.random.key(3),
    "dtypes": lambda: np.dtype("float32"),
    "jax functions": lambda: nn.gelu,
}

DIFFERENT = {
    "a field": (Block(4), Block(5)),
    "a type of a field": (Block(True), Block(1)),
    "an initializer's number": (Block(4, nn.initializers.normal(0.02)), Block(4, nn.initializers.normal(0.03))),
    "a closure's value": (scaled(2.0), scaled(3.0)),
    "an inner closure's value": (nested(2.0), nested(3.0)),
    "the sign of zero": (scaled(0.0), scaled(-0.0)),
    "an int and a float": (scaled(1), scaled(1.0)),
    "an array's values": (np.arange(4.0), np.arange(4.0) + 1),
    "an array's dtype": (np.arange(4.0), np.arange(4)),
    "an array's shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "a numpy and a JAX array": (np.arange(4.0, dtype="float32"), jnp.arange(4.0)),
    "a tuple and a list": ((1, 2), [1, 2]),
    "partial arguments": (functools.partial(jnp.sum, axis=1), functools.partial(jnp.sum, axis=0)),
    "functions": (nn.gelu, nn.relu),
    "defaults": (lambda x, k=1: x * k, lambda x, k=2: x * k),
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE.keys())
def test_what_traces_alike_has_one_key(make):
    key = canonical_key(make())
    assert key is not None
    assert key == canonical_key(make())
    assert hash(key) == hash(canonical_key(make()))


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_traces_differently_has_two(first, second):
    assert canonical_key(first) is not None
    assert canonical_key(first) != canonical_key(second)


@pytest.mark.parametrize(
    "value", [named_global, Block(4), lambda x: named_global(x)], ids=["function", "method", "call"]
)
def test_a_global_that_the_code_reads_is_part_of_the_key(value, monkeypatch):
    before = canonical_key(value)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert canonical_key(value) != before
    monkeypatch.undo()
    assert canonical_key(value) == before


@pytest.mark.parametrize("value", [Plain(2), Plain(2).__call__, scaled(Plain(2))], ids=["object", "method", "closure"])
def test_what_cannot_be_looked_into_has_no_key(value):
    assert canonical_key(value) is None


def test_a_list_that_holds_itself_has_a_key():
    items = [1]
    items.append(items)
    assert canonical_key(items) is not None
