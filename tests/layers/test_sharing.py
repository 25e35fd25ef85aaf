"""Equal layers share what was made of their function."""

import concurrent.futures

import flax.linen as nn
import jax
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer, jax2tf
from jaxbridge.core.programs import PROGRAMS
from tests.traces import note_trace, traces_of


class Block(nn.Module):
    features: int = 4

    @nn.compact
    def __call__(self, x, training=False):
        note_trace()
        h = nn.Dense(self.features, kernel_init=nn.initializers.normal(0.02))(nn.LayerNorm()(x))
        return x + nn.Dropout(0.1, deterministic=not training)(h)


def fitted(blocks):
    model = keras.Sequential([keras.Input((4,)), *(FlaxLayer(Block(), seed=n) for n in range(blocks))])
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    model.fit(x, x, verbose=0)
    return model


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


def test_threads_share_what_is_made():
    PROGRAMS.clear()
    layer = FlaxLayer(Block())
    x = np.ones((4, 4), "float32")
    layer(keras.KerasTensor((None, 4)))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        traces, outputs = traces_of(lambda: list(pool.map(lambda _: layer(x), range(16))))
    assert traces <= 1
    for output in outputs:
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(output), keras.ops.convert_to_numpy(layer(x)))


def sizes_seen(layer, x):
    """What the user's Python sees of its input in two calls: a debugger stops there."""
    SEEN.clear()
    layer(x), layer(x)
    return list(SEEN)


SEEN = []


def looked_at(inputs):
    SEEN.append(type(inputs))
    return inputs + 1


@pytest.mark.keras_backends("jax")
def test_without_jit_every_call_runs_the_users_python_on_arrays():
    layer = JaxLayer(looked_at)
    x = np.ones((4, 4), "float32")
    layer(x)
    assert sizes_seen(layer, x) == []
    with jax.disable_jit():
        # Before them the trace that looks for closed-over arrays.
        assert [issubclass(kind, jax.core.Tracer) for kind in sizes_seen(layer, x)][-2:] == [False, False]


@pytest.mark.keras_backends("tensorflow")
def test_functions_run_eagerly_give_the_same():
    import tensorflow as tf

    layer = FlaxLayer(Block())
    x = np.ones((4, 4), "float32")
    want = layer(x)
    tf.config.run_functions_eagerly(True)
    try:
        np.testing.assert_allclose(layer(x), want, rtol=1e-6)
    finally:
        tf.config.run_functions_eagerly(False)


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
    assert (made.traces, made.lowerings, made.emissions) == (0, 0, 0) and made.cache_hits > 0


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
