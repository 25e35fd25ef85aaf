"""Calls outside of any graph on TensorFlow: one function that equal layers share, and that reads their variables itself."""

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, jax2tf

pytestmark = pytest.mark.keras_backends("tensorflow")

X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


class Counting(nn.Module):
    """Weights, state and draws."""

    @nn.compact
    def __call__(self, x, training=False):
        x = nn.BatchNorm(use_running_average=not training)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=not training)(x)


def called(seed=1):
    layer = FlaxLayer(Counting(), seed=seed, name="net")
    layer(X)
    return layer


def weights(layer):
    return [weight.numpy() for weight in layer.weights]


def test_what_is_assigned_is_read():
    layer = called()
    doubled = [2 * value for value in weights(layer)]
    layer.set_weights(doubled)
    other = called()
    other.set_weights(doubled)
    with tf_tape() as _:  # the values are passed
        want = other(X)
    np.testing.assert_array_equal(layer(X), want)


def tf_tape():
    import tensorflow as tf

    return tf.GradientTape()


def test_recorded_and_unrecorded_calls_are_one_sequence():
    """State and draws go on from one kind of call to the other."""
    first, second = called(), called()
    second.set_weights(weights(first))
    for n in range(4):
        want = first(X, training=True)
        if n % 2:
            got = second(X, training=True)
        else:
            with tf_tape():
                got = second(X, training=True)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # compiled with residuals and without
    for got, want in zip(weights(second), weights(first), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_tape_finds_the_gradients_of_a_layer_that_was_called_without_one():
    layer = called()
    with tf_tape() as tape:
        loss = keras.ops.sum(layer(X) ** 2)
    gradients = tape.gradient(loss, [v.value for v in layer.trainable_variables])
    assert all(gradient is not None for gradient in gradients)


def test_equal_layers_share_the_function_and_not_the_values():
    first = called(seed=1)
    before = jax2tf.stats()
    second = called(seed=2)
    made = jax2tf.stats() - before
    assert (made.traces, made.lowerings, made.emissions) == (0, 0, 0)
    assert not np.array_equal(first(X), second(X))


def test_values_that_stand_in_for_variables_are_used():
    layer = called()
    zeros = [np.zeros_like(v.numpy()) for v in layer.trainable_variables]
    outputs, _ = layer.stateless_call(zeros, [v.value for v in layer.non_trainable_variables], X)
    np.testing.assert_array_equal(outputs, np.zeros((3, 4)))


def test_in_the_scope_of_a_strategy():
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        layer = called()
        inside = layer(X)
    np.testing.assert_allclose(layer(X), inside, rtol=1e-6)
