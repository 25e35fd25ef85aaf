"""Gradients of a served model, in a process without JAX."""

import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer, export_saved_model
from jaxbridge.errors import SignatureError
from tests.jax2tf.helpers import run_python

X = np.linspace(-0.9, 0.8, 6, dtype="float32").reshape(2, 3)

SERVE = """
import sys, json
import tensorflow as tf
folder, order = sys.argv[1], int(sys.argv[2])
x = tf.constant(json.loads(sys.argv[3]))
loaded = tf.saved_model.load(folder)
def gradient(n):
    if n == 0:
        return loaded.serve(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(gradient(n - 1))
    return tape.gradient(value, x)
try:
    print(json.dumps([gradient(n).numpy().tolist() for n in range(order + 1)]))
except LookupError as error:
    print(json.dumps(str(error)[:200]))
"""


def cubed(inputs):
    return jnp.sin(inputs) ** 3


def served(folder: Path, order: int):
    printed = run_python(SERVE, folder, order, json.dumps(X.tolist()), without=("jax", "jaxlib", "flax", "jaxbridge"))
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="module")
def models():
    """A model of two functions and a module, and the same in plain JAX."""
    dense = FlaxLayer(nn.Dense(3), seed=0)
    model = keras.Sequential([keras.Input((3,)), JaxLayer(cubed), dense, JaxLayer(cubed)])
    kernel, bias = (keras.ops.convert_to_numpy(dense.params["params"][n].value) for n in ("kernel", "bias"))
    return model, lambda x: cubed(cubed(x) @ kernel + bias)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_order_that_was_asked_for(models, tmp_path, order):
    model, plain = models
    report = export_saved_model(model, tmp_path / "m", gradient_order=order, verify=False)
    assert report.has_gradients
    want, fn = [], plain
    for _ in range(order + 1):
        want.append(fn(X))
        fn = jax.grad(lambda x, fn=fn: fn(x).sum())
    # float32; every order multiplies what is rounded.
    for found, wanted in zip(served(tmp_path / "m", order), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("order", [0, -1, True, "2"])
def test_an_order_that_is_none_is_refused(models, tmp_path, order):
    with pytest.raises(SignatureError, match="gradient_order"):
        export_saved_model(models[0], tmp_path / "m", gradient_order=order)
    assert not (tmp_path / "m").exists()
