"""How often the Python function is traced, what is kept, and by whom."""

import gc
import threading
import time
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf


class Counted:
    """A function that counts its traces."""

    def __init__(self, seconds: float = 0.0):
        self.traces, self.seconds = 0, seconds

    def __call__(self, w, x):
        self.traces += 1
        time.sleep(self.seconds)
        return jnp.tanh(x @ w)


W = tf.ones((3, 3))


def x(batch: int = 2) -> Any:
    return tf.ones((batch, 3))


def gradient(converted: Any, order: int = 1) -> Any:
    if order == 0:
        return converted(W, x())
    with tf.GradientTape() as tape:
        tape.watch(W)
        last = gradient(converted, order - 1)
    return tape.gradient(last, W)


def test_one_call_traces_once():
    counted = Counted()
    jax2tf.convert(counted)(W, x())
    assert counted.traces == 1


def test_another_batch_traces_no_more():
    counted = Counted()
    converted = jax2tf.convert(counted, polymorphic_shapes=[None, "b, 3"])
    for batch in (2, 5, 0):
        converted(W, x(batch))
    assert counted.traces == 1


def test_another_size_that_is_fixed_traces_again():
    counted = Counted()
    converted = jax2tf.convert(counted)
    for batch in (2, 5, 2):
        converted(W, x(batch))
    assert counted.traces == 2


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("plain_first", [False, True])
def test_gradients_trace_no_more(order: int, plain_first: bool):
    counted = Counted()
    converted = jax2tf.convert(counted)
    if plain_first:
        converted(W, x())
    gradient(converted, order)
    assert counted.traces == 1


def test_retraced_functions_share_the_conversion():
    counted = Counted()
    converted = jax2tf.convert(counted)
    for _ in range(2):
        tf.function(lambda: gradient(converted, 1), autograph=False)()
        tf.function(converted, autograph=False)(W, x())
    assert counted.traces == 1


def test_threads_share_the_conversion():
    counted, failures = Counted(0.05), []
    converted = jax2tf.convert(counted)

    def run():
        try:
            np.testing.assert_allclose(gradient(converted), 2 * (1 - np.tanh(3) ** 2) * np.ones((3, 3)), rtol=1e-4)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counted.traces == 1


def test_configuration_of_jax_is_part_of_the_key():
    counted = Counted()
    converted = jax2tf.convert(counted)
    converted(W, x())
    with jax.default_matmul_precision("highest"):
        converted(W, x())
    converted(W, x())
    assert counted.traces == 2


def test_dropped_function_is_freed():
    """Nothing global keeps the JAX function or its conversions after an eager gradient."""
    counted = Counted()
    converted = jax2tf.convert(counted)
    gradient(converted)
    dead = weakref.ref(counted)
    del counted, converted
    jax.clear_caches()
    gc.collect()
    assert dead() is None


def test_conversion_keeps_no_tensors():
    converted = jax2tf.convert(jnp.sin)
    value = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(value)
        y = converted(value)
    tape.gradient(y, value)
    dead = weakref.ref(value)
    del value, y, tape
    gc.collect()
    assert dead() is None
