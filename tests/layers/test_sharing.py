"""Equal layers share what was made of their function."""

import itertools

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, jax2tf
from jaxbridge.core.programs import PROGRAMS

TRACES = itertools.count()  # unlike a list, nothing that a canonical key would look into


class Block(nn.Module):
    features: int = 4

    @nn.compact
    def __call__(self, x, training=False):
        next(TRACES)
        h = nn.Dense(self.features, kernel_init=nn.initializers.normal(0.02))(nn.LayerNorm()(x))
        return x + nn.Dropout(0.1, deterministic=not training)(h)


def fitted(blocks):
    model = keras.Sequential([keras.Input((4,)), *(FlaxLayer(Block(), seed=n) for n in range(blocks))])
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    model.fit(x, x, verbose=0)
    return model


def traces_of(function):
    before = next(TRACES)
    result = function()
    return next(TRACES) - before - 1, result


def test_equal_blocks_are_traced_once():
    PROGRAMS.clear()
    one, _ = traces_of(lambda: fitted(1))
    PROGRAMS.clear()
    many, _ = traces_of(lambda: fitted(6))
    assert 0 < many <= one


def test_a_second_model_of_equal_blocks_traces_and_makes_nothing():
    first = fitted(2)
    misses = PROGRAMS.misses
    again, second = traces_of(lambda: fitted(3))
    assert again == 0 and PROGRAMS.misses == misses
    assert len(first.layers) == 2 and len(second.layers) == 3


def test_shared_functions_do_not_share_weights_or_draws():
    model = fitted(2)
    first, second = model.layers
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    outputs = [keras.ops.convert_to_numpy(layer(x, training=True)) for layer in (first, second)]
    assert not np.array_equal(*outputs)
    assert first.weights[0] is not second.weights[0]


@pytest.mark.keras_backends("tensorflow")
def test_a_second_model_of_equal_blocks_lowers_nothing():
    fitted(2)
    before = jax2tf.stats()
    fitted(3)
    made = jax2tf.stats() - before
    assert (made.traces, made.lowerings) == (0, 0) and made.emissions > 0


@pytest.mark.keras_backends("tensorflow")
def test_eight_eager_batch_sizes_are_one_trace():
    PROGRAMS.clear()
    layer = FlaxLayer(Block())
    layer(keras.KerasTensor((None, 4)))
    before = jax2tf.stats()
    traces, _ = traces_of(lambda: [layer(np.ones((b, 4), "float32")) for b in range(1, 9)])
    made = jax2tf.stats() - before
    assert traces <= 1 and (made.lowerings, made.emissions) == (1, 1)


def test_a_second_eager_call_traces_nothing():
    layer = FlaxLayer(Block())
    x = np.ones((4, 4), "float32")
    for training in (False, True):
        layer(x, training=training)
        again, _ = traces_of(lambda training=training: layer(x, training=training))
        assert again == 0
