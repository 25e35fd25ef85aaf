"""The names of `jax.experimental.jax2tf`: here with the same contract, or with a word on what to write instead."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import jax2tf as experimental

from jaxbridge import jax2tf

HERE = ["convert", "DisabledSafetyCheck", "eval_polymorphic_shape", "dtype_of_val"]
REPLACED = ["PolyShape", "call_tf", "split_to_logical_devices"]


def test_every_public_name_is_accounted_for():
    public = {
        name
        for name in vars(experimental)
        if not name.startswith("_") and not inspect.ismodule(getattr(experimental, name))
    }
    assert public == {*HERE, *REPLACED}


@pytest.mark.parametrize("name", HERE)
def test_name_is_here(name: str):
    assert callable(getattr(jax2tf, name))


def test_keywords_of_convert():
    """All of them; two say what is always so, and are taken with a warning."""
    ours, theirs = (set(inspect.signature(module.convert).parameters) for module in (jax2tf, experimental))
    assert theirs <= ours
    assert ours - theirs <= {"stablehlo_version", "nan", "source_info", "enable_xla", "native_serialization"}


@pytest.mark.parametrize("name", REPLACED)
def test_name_that_is_not_here_says_what_to_write(name: str):
    with pytest.raises(AttributeError, match=rf"has no `{name}`\. \w+"):
        getattr(jax2tf, name)
    assert not hasattr(jax2tf, name)


def test_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        jax2tf.nothing  # noqa: B018


X, Y = jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((3, 4), jnp.float32)
SHAPES = {
    "one": (lambda x: x.T, ["b, c"], [X]),
    "two": (
        lambda x, y: {"matrix": x @ y, "flat": x.reshape(-1)},
        ["a, b", "b, c"],
        [X, Y],
    ),
    "none": (lambda x: x.sum(0), None, [X]),
    "array": (lambda x: x * 2, ["b, ..."], [np.zeros((2, 3), np.float32)]),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_eval_polymorphic_shape(name: str):
    fn, shapes, args = SHAPES[name]
    (ours, texts), (theirs, wanted) = (
        module.eval_polymorphic_shape(fn, polymorphic_shapes=shapes)(*args) for module in (jax2tf, experimental)
    )
    assert texts == wanted
    assert jax.tree.map(lambda s: str((s.shape, s.dtype)), ours) == jax.tree.map(
        lambda s: str((s.shape, s.dtype)), theirs
    )


VALUES: list[Any] = [1, 1.5, True, np.float64(1), np.int64(1), np.zeros(2, "uint8"), jnp.ones(2, "bfloat16")]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}_{np.asarray(value).dtype}")
def test_dtype_of_val(value: Any):
    assert jax2tf.dtype_of_val(value) == experimental.dtype_of_val(value)
