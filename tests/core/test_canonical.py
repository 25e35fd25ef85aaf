"""Keys that say which functions and modules trace alike."""

import collections
import dataclasses
import enum
import functools
import os
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

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


# What a function reads may change, wherever it is; and then it is another function. Each row: something that reads it, and
# what changes it.

settings = types.ModuleType("settings")
settings.scale, settings.helper = 2.0, lambda x: x * settings.scale
sys.modules["settings"] = settings


class Config:
    scale = 2.0


class Inherits(Config):
    pass


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Options:
    parent: float = 2.0

    @property
    def scale(self):
        return SCALE


class WithAttribute(nn.Module):
    scale = 2.0  # without an annotation, so no field

    def __call__(self, x):
        return x * self.scale


@jax.custom_vjp
def scaled_backwards(x):
    return x


scaled_backwards.defvjp(lambda x: (x, None), lambda _, ct: (ct * SCALE,))


@functools.wraps(jnp.sin)
def looks_like_a_library(x):
    return x * SCALE


@np.vectorize
def vectorized(x):
    return x * SCALE


def helper(x):
    return x


class Listed(list):
    pass


OPTIONS, LISTED, QUEUE, DEFAULTS = Options(), Listed([1]), collections.deque([1]), collections.defaultdict(int)
LINEAR, BOUND = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nn.Dense(2).bind({"params": {"kernel": jnp.ones((2, 2))}})


def imports_itself(x):
    import settings

    return x * settings.scale


def set_global(name, value):
    globals()[name] = value


CHANGES = {
    "an attribute of a module": (lambda x: x * settings.scale, lambda: setattr(settings, "scale", 3.0)),
    "a global of a module's function": (lambda x: settings.helper(x), lambda: setattr(settings, "scale", 4.0)),
    "a function of a module": (lambda x: settings.helper(x), lambda: setattr(settings, "helper", lambda x: x)),
    "an attribute of a class": (lambda x: x * Config.scale, lambda: setattr(Config, "scale", 3.0)),
    "an inherited attribute": (lambda x: x * Inherits.scale, lambda: setattr(Config, "scale", 4.0)),
    "an attribute of a module's class": (WithAttribute(), lambda: setattr(WithAttribute, "scale", 3.0)),
    "an attribute of an enum": (lambda x: x * Mode.FAST.scale, lambda: setattr(Mode.FAST, "scale", 3.0)),
    "an attribute of a function": (lambda x: x * helper.scale, lambda: setattr(helper, "scale", 3.0)),
    "a field called parent": (lambda x: x * OPTIONS.parent, lambda: setattr(OPTIONS, "parent", 3.0)),
    "what is no field": (lambda x: x * OPTIONS.other, lambda: setattr(OPTIONS, "other", 3.0)),
    "a global of a property": (lambda x: x * OPTIONS.scale, lambda: set_global("SCALE", 4.0)),
    "a global of a backward pass": (lambda x: scaled_backwards(x), lambda: set_global("SCALE", 5.0)),
    "a global of a vectorized function": (lambda x: vectorized(x), lambda: set_global("SCALE", 7.0)),
}

#: What reads something that may change where no key can see it.
UNREADABLE = {
    "a module that it imports": imports_itself,
    "the environment": lambda x: x * len(os.environ),
    "globals()": lambda x: x * globals()["SCALE"],
    "a global of a wrapper": lambda x: looks_like_a_library(x),
    "a list of a class of its own": lambda x: x * LISTED.scale,
    "a deque": lambda x: x * QUEUE[0],
    "a default": lambda x: x * DEFAULTS["x"],
    "weights of an nnx module": lambda x: LINEAR(x),
    "variables of a bound module": lambda x: BOUND(x),
    "draws of numpy": lambda x: x * np.random.normal(),
}


@pytest.mark.parametrize(("reader", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_what_reads_something_that_changed_is_another_function(reader, change):
    before = canonical_key(reader)
    scale = SCALE
    change()
    after = canonical_key(reader)
    set_global("SCALE", scale)
    assert before is not None and after != before


@pytest.mark.parametrize("reader", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_reads_something_that_no_key_sees_has_none(reader):
    assert canonical_key(reader) is None


def test_modules_are_read_only_where_they_are_named():
    """What else is in the module may change."""
    reader = lambda x: x * settings.scale
    before = canonical_key(reader)
    settings.unrelated = object()
    assert before is not None and canonical_key(reader) == before


OTHER_ARRAYS = {
    "int4": [np.array([-1, 2]).astype(ml_dtypes.int4).view(kind) for kind in (ml_dtypes.int4, ml_dtypes.uint4)],
    "names of fields": [np.zeros(2, [(name, "f4")]) for name in "ab"],
    "keys": [jax.random.wrap_key_data(jnp.arange(4, dtype="uint32"), impl=impl) for impl in ("rbg", "unsafe_rbg")],
}


@pytest.mark.parametrize("arrays", OTHER_ARRAYS.values(), ids=OTHER_ARRAYS.keys())
def test_arrays_of_equal_bytes_differ_in_their_types(arrays):
    first, second = map(canonical_key, arrays)
    assert first is not None and first != second


def test_a_masked_array_has_no_key():
    assert canonical_key(np.ma.MaskedArray([1.0, 2.0], [False, True])) is None
