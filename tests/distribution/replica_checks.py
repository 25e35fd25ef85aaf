"""Replicas of `tf.distribute`, on four virtual CPUs: collectives, `fit`, draws and state."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.distribution import (
    all_gather,
    all_reduce,
    autoshard,
    broadcast,
    reduce_scatter,
    split_tensor_for_parallelism,
)
from jaxbridge.errors import ShardingError, UnsupportedBackendError
from tests.distribution.checks import Checks

CHECKS = Checks()
NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
COUNTS = (2, 4)

#: Two or four values of float32 are added in another order.
RTOL = 1e-6
#: Three updates, with gradients summed over replicas.
RTOL_FITTED = 1e-4


def setup():
    """Before TensorFlow has started: four CPUs out of one."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)


@functools.cache
def mirrored(count):
    """One strategy for all checks of a count: a second one would take the keys of the first one's collectives.

    For the same reason only the two replicas use them; the four reduce on one device.
    """
    ops = None if count == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(count)], ops)


def values(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def on_replicas(strategy, function, per_replica):
    """Returns what each replica gets, given what each has; eager, and the same compiled."""
    given = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(per_replica[context.replica_id_in_sync_group])
    )
    eager = strategy.run(function, (given,))
    compiled = tf.function(lambda x: strategy.run(function, (x,)), autograph=False)(given)
    results = [[part.numpy() for part in strategy.experimental_local_results(each)] for each in (eager, compiled)]
    np.testing.assert_allclose(results[1], results[0], RTOL)
    return np.stack(results[0])


@CHECKS.of({f"{count} replicas, {op}": (count, op) for count in COUNTS for op in NUMPY})
def all_reduce_of_replicas(row):
    count, op = row
    x = values(count, 3, 5)
    got = on_replicas(mirrored(count), lambda x: all_reduce(x, op), x)
    np.testing.assert_allclose(got, np.broadcast_to(NUMPY[op](x, 0), x.shape), RTOL)


@CHECKS.of({f"{count} replicas, {op}": (count, op) for count in COUNTS for op in ("sum", "max")})
def reduce_scatter_of_replicas(row):
    count, op = row
    x = values(count, 3, 8)
    got = on_replicas(mirrored(count), lambda x: reduce_scatter(x, op, -1), x)
    np.testing.assert_allclose(got, np.stack(np.split(NUMPY[op](x, 0), count, -1)), RTOL, atol=1e-7)


@CHECKS.of(COUNTS)
def all_gather_of_replicas(count):
    x = values(count, 3, 5)
    got = on_replicas(mirrored(count), lambda x: all_gather(x, 1), x)
    np.testing.assert_array_equal(got, np.broadcast_to(np.concatenate(list(x), 1), got.shape))


@CHECKS.of(COUNTS)
def broadcast_of_replicas(count):
    x = values(count, 3)
    x[0] = np.nan
    got = on_replicas(mirrored(count), lambda x: broadcast(x, 1), x)
    np.testing.assert_array_equal(got, np.broadcast_to(x[1], x.shape))


@CHECKS.of({f"{count} replicas, size {size}": (count, size) for count in COUNTS for size in (1, 5, 8)})
def uneven_parts_of_replicas_are_gathered_to_the_whole(row):
    count, size = row
    x = values(size, 3)

    def there_and_back(whole):
        index = tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return all_gather(split_tensor_for_parallelism(whole, index, count, 0), 0, size=size)

    got = on_replicas(mirrored(count), there_and_back, np.broadcast_to(x, (count, *x.shape)))
    np.testing.assert_array_equal(got, np.broadcast_to(x, got.shape))


@CHECKS.of()
def one_replica_is_its_own_group():
    x = values(4, 3)
    for collective in (all_reduce, all_gather, reduce_scatter, broadcast):
        np.testing.assert_array_equal(collective(tf.constant(x)), x)


@CHECKS.of()
def jax_functions_are_traced_with_collectives_of_jax():
    """Inside a JAX function a tensor is JAX's, whatever the backend: the layer runs in TensorFlow."""
    highest = jax.vmap(lambda x: all_reduce(x, "max", "rows"), axis_name="rows")
    layer = JaxLayer(lambda inputs: highest(inputs), polymorphic_shapes="(3, 4)")
    x = values(3, 4)
    np.testing.assert_array_equal(layer(x), np.broadcast_to(x.max(0), x.shape))


# Layers.


class Net(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, training: bool = False):
        x = nn.tanh(nn.Dense(16)(x))
        return nn.Dense(2)(nn.Dropout(self.dropout, deterministic=not training)(x))


def fitted(strategy=None):
    keras.utils.set_random_seed(0)
    with tf.distribute.get_strategy().scope() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((3,)), FlaxLayer(Net(), name="net", seed=0)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(values(16, 3), np.ones((16, 2), "float32"), batch_size=8, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


@CHECKS.of(COUNTS)
def fit_on_replicas_is_fit_on_one_device(count):
    np.testing.assert_allclose(fitted(mirrored(count)), fitted(), RTOL_FITTED)


def noise(rng, inputs):
    return inputs if rng is None else jax.random.normal(rng, inputs.shape)


@CHECKS.of(COUNTS)
def draws_differ_by_replica_and_follow_the_rule(count):
    strategy = mirrored(count)
    with strategy.scope():
        layer = JaxLayer(noise, seed=7)
        layer.build((3,))
    zeros = np.zeros((count, 3), "float32")
    given = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(zeros[0]))
    step = tf.function(lambda x: strategy.run(lambda x: layer(x, training=True), (x,)), autograph=False)
    for number in range(3):
        got = [part.numpy() for part in strategy.experimental_local_results(step(given))]
        for replica, drawn in enumerate(got):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), number), replica)
            np.testing.assert_allclose(drawn, jax.random.normal(key, (3,)), 1e-5)
    states = [state.numpy().tolist() for state in strategy.experimental_local_results(layer.seed_generator.state.value)]
    assert states == [[7, 3]] * count, states


@CHECKS.of()
def one_replica_draws_what_no_strategy_draws():
    strategy = mirrored(1)
    with strategy.scope():
        layer = JaxLayer(noise, seed=7)
        got = strategy.run(lambda: layer(tf.zeros(3), training=True))
    np.testing.assert_allclose(got, jax.random.normal(jax.random.fold_in(jax.random.key(7), 0), (3,)), 1e-5)


def counting(state, inputs, training):
    new = {"mean": 0.5 * state["mean"] + 0.5 * jnp.mean(inputs), "count": state["count"] + 1}
    return inputs, new if training else state


@CHECKS.of(COUNTS)
def state_agrees_on_all_replicas(count):
    strategy = mirrored(count)
    with strategy.scope():
        layer = JaxLayer(counting, state={"mean": np.zeros((), "float32"), "count": np.zeros((), "int32")})
        layer.build((3,))
    x = values(count, 3)
    on_replicas(strategy, lambda x: layer(x, training=True), x)  # two calls
    local = {v.name: [part.numpy() for part in strategy.experimental_local_results(v.value)] for v in layer.variables}
    np.testing.assert_allclose(local["mean"], [0.75 * x.mean()] * count, 1e-5)
    np.testing.assert_array_equal(local["count"], [2] * count)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not training)(nn.BatchNorm(not training)(x)))


@CHECKS.of(COUNTS)
def variables_agree_after_fit(count):
    strategy = mirrored(count)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), FlaxLayer(Normed(), name="net")])
        model.compile("adam", "mse")
    model.fit(values(16, 3), np.ones((16, 2), "float32"), batch_size=8, epochs=2, verbose=0)
    for variable in model.variables:
        first, *others = strategy.experimental_local_results(variable.value)
        assert len(others) == count - 1, variable.path
        for other in others:
            np.testing.assert_array_equal(first.numpy(), other.numpy(), variable.path)


def in_scope(call):
    with mirrored(2).scope():
        call()


ERRORS = {
    "outside of the replicas": (
        lambda: in_scope(lambda: all_reduce(tf.ones(3))),
        ShardingError,
        r"function that `strategy.run` is given",
    ),
    "an uneven reduce_scatter": (
        lambda: mirrored(2).run(lambda: reduce_scatter(tf.ones(3))),
        ShardingError,
        r"size 3 .* 2 devices.*Pad it to 4",
    ),
    "a root that there is not": (lambda: broadcast(tf.ones(3), 1), ShardingError, r"from 0 to 0.*got 1"),
    "autoshard": (
        lambda: autoshard(
            keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
            keras.distribution.DeviceMesh((1, 2), ["data", "model"], ["cpu:0", "cpu:1"]),
        ),
        UnsupportedBackendError,
        r"KERAS_BACKEND=jax",
    ),
}


@CHECKS.of(ERRORS)
def mistakes_with_replicas(row):
    call, error, text = row
    with pytest.raises(error, match=text):
        call()
