"""Gradients that JAX cannot trace for unknown sizes: those that are known take the place of their symbols."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer
from jaxbridge.errors import DifferentiationError

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be traced for unknown sizes")

CONVOLUTIONS = {
    "1-D same": (1, lambda: nn.Conv(2, (3,), strides=2)),
    "1-D valid": (1, lambda: nn.Conv(2, (3,), strides=2, padding="VALID")),
    "1-D depthwise": (1, lambda: nn.Conv(6, (3,), strides=2, feature_group_count=3)),
    "1-D dilated": (1, lambda: nn.Conv(2, (3,), strides=2, kernel_dilation=2)),
    "1-D transposed": (1, lambda: nn.ConvTranspose(2, (3,), strides=(2,))),
    "2-D same": (2, lambda: nn.Conv(2, (3, 3), strides=2)),
    "2-D valid": (2, lambda: nn.Conv(2, (2, 3), strides=(3, 2), padding="VALID")),
    "3-D same": (3, lambda: nn.Conv(2, (2, 3, 2), strides=2)),
}


@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_a_training_step_equals_that_of_jax(name):
    rank, make = CONVOLUTIONS[name]
    module = make()
    layer = FlaxLayer(module, seed=1)
    model = keras.Sequential([keras.Input((None,) * rank + (3,)), layer])
    model.add(getattr(keras.layers, f"GlobalAveragePooling{rank}D")())
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(2, *(9, 8, 7)[:rank], 3)).astype("float32")
    before = jax.tree.map(lambda v: keras.ops.convert_to_numpy(v.value), layer.params)
    y = np.zeros((2, before["params"]["kernel"].shape[-1]), "float32")

    def loss(params):
        return jnp.mean((module.apply(params, x).mean(range(1, rank + 1)) - y) ** 2)

    want = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, before, jax.grad(loss)(before))
    model.fit(x, y, verbose=0)
    for got, value in zip(jax.tree.leaves(layer.params), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(got), value, rtol=1e-4, atol=1e-6)


class Likelihood(nn.Module):
    """Of a Gaussian process: a matrix of (batch, batch) is decomposed."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, ())
        distances = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        lower = jnp.linalg.cholesky(jnp.exp(-distances * scale) + 0.1 * jnp.eye(x.shape[0]))
        return jnp.log(jnp.diag(lower)).sum()[None]


@pytest.mark.keras_backends("tensorflow")
def test_the_likelihood_of_a_gaussian_process():
    import tensorflow as tf

    layer = FlaxLayer(Likelihood(), seed=1)
    x = np.random.default_rng(0).normal(size=(6, 2)).astype("float32")
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(layer(x))
    got = tape.gradient(value, layer.params["params"]["scale"].value)
    fn = lambda scale: Likelihood().apply({"params": {"scale": scale}}, x)[0]
    np.testing.assert_allclose(got, jax.grad(fn)(1.0), rtol=1e-3, atol=1e-5)


@pytest.mark.keras_backends("tensorflow")
def test_the_error_names_what_would_help():
    import tensorflow as tf

    layer = FlaxLayer(nn.Conv(2, (3,), strides=2))
    model = keras.Sequential([keras.Input((None, 3)), layer])

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3))], autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables[0].value)

    with pytest.raises(DifferentiationError, match=r"polymorphic_shapes='\(batch, 2\*size_1, 3\)'") as caught:
        step(np.zeros((2, 8, 3), "float32"))
    assert "fori_loop" not in str(caught.value)
