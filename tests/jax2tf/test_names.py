"""Names of scopes and modules reach what TensorFlow compiles, live and from files; files and lines only on request."""

import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf

X = np.ones((2, 3), "float32")


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(4)(x)))


def scoped(x):
    with jax.named_scope("my_scope"):
        return jnp.sin(x) @ jnp.cos(x).T


def module(x):
    params = jax.tree.map(lambda s: jnp.ones(s.shape), jax.eval_shape(Net().init, jax.random.key(0), x))
    return Net().apply(params, x)


#: The function -> a name that its HLO has for an operation.
FUNCTIONS = {"scope": (scoped, "my_scope/sin"), "module": (module, "Net/Dense_0/dot_general")}
SHAPES = [None, "(b, 3)"]


def hlo(function: Any) -> str:
    compiled = tf.function(function, autograph=False, jit_compile=True)
    return compiled.experimental_get_compiler_ir(tf.constant(X))(stage="hlo")


def names(text: str) -> set[str]:
    return set(re.findall(r'op_name="([^"]*)"', text))


def saved(function: Any, folder: Path) -> bytes:
    holder = tf.Module()
    holder.f = tf.function(function, input_signature=[tf.TensorSpec((None, 3))], autograph=False)
    tf.saved_model.save(holder, str(folder))
    return (folder / "saved_model.pb").read_bytes()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_live(name: str, shape: str | None):
    fn, wanted = FUNCTIONS[name]
    text = hlo(jax2tf.convert(fn, polymorphic_shapes=shape and [shape]))
    assert any(found.endswith(wanted) for found in names(text)), names(text)
    assert Path(__file__).name not in text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loaded(name: str, tmp_path: Path):
    fn, wanted = FUNCTIONS[name]
    data = saved(jax2tf.convert(fn, polymorphic_shapes=["(b, 3)"]), tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    assert any(found.endswith(wanted) for found in names(hlo(loaded.f)))
    assert b".py" not in data
    for path in (Path(__file__).parents[2], Path.home(), Path(jax.__file__).parent, tmp_path):
        assert str(path).encode() not in data


def test_gradients_have_names():

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = jax2tf.convert(scoped)(x)
        return tape.gradient(y, x)

    found = names(hlo(gradient))
    assert any("transpose" in name and "my_scope" in name for name in found), found


def test_lines_where_they_are_asked_for(tmp_path: Path):
    converted = jax2tf.convert(scoped, polymorphic_shapes=["(b, 3)"], source_info=True)
    assert __file__.encode() in saved(converted, tmp_path)
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path)).f(X), scoped(X), rtol=1e-5)


def test_lines_for_an_older_tensorflow():
    """Ranges of places, which JAX writes, are newer than what it reads."""
    converted = jax2tf.convert(scoped, source_info=True, stablehlo_version="1.0.0")
    np.testing.assert_allclose(converted(X), scoped(X), rtol=1e-5)
