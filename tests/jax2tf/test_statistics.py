"""What is traced, lowered and emitted, counted."""

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from jaxbridge.core.programs import PROGRAMS


def counted(function):
    before = jax2tf.stats()
    function()
    return jax2tf.stats() - before


def dense(features):
    bias = np.full((features,), 0.5, "float32")
    return lambda w, x: jnp.tanh(x @ w) + bias


W = tf.ones((3, 3))


def train(converted, batch):
    with tf.GradientTape() as tape:
        tape.watch(W)
        loss = tf.reduce_sum(converted(W, tf.ones((batch, 3))))
    return tape.gradient(loss, W)


#: What happens -> (traces, lowerings, emissions).
STEPS = {
    "a first call": (lambda f: f(W, tf.ones((2, 3))), (1, 1, 1)),
    "a second call": (lambda f: [f(W, tf.ones((2, 3))) for _ in range(2)], (1, 1, 2)),
    "eight batch sizes": (lambda f: [f(W, tf.ones((b, 3))) for b in range(1, 9)], (1, 1, 8)),
    "a gradient": (lambda f: train(f, 2), (1, 2, 2)),
    "eight gradients": (lambda f: [train(f, b) for b in range(1, 9)], (1, 2, 16)),
    "in a graph, eight batch sizes": (
        lambda f: [
            g(W, tf.ones((b, 3)))
            for g in [
                tf.function(f, input_signature=[tf.TensorSpec((3, 3)), tf.TensorSpec((None, 3))], autograph=False)
            ]
            for b in range(1, 9)
        ],
        (1, 1, 1),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_counts(name):
    PROGRAMS.clear()
    step, expected = STEPS[name]
    converted = jax2tf.convert(dense(3), polymorphic_shapes=[None, "b, _"])
    found = counted(lambda: step(converted))
    assert (found.traces, found.lowerings, found.emissions) == expected


def test_an_equal_function_is_not_traced_again():
    PROGRAMS.clear()
    first = jax2tf.convert(dense(3))
    train(first, 2)
    found = counted(lambda: train(jax2tf.convert(dense(3)), 2))
    assert (found.traces, found.lowerings, found.cache_hits) == (0, 0, 1)


def test_a_function_with_another_constant_is_another():
    def scaled(factor):
        return jax2tf.convert(lambda x: x * factor)

    assert [float(scaled(factor)(tf.constant(1.0))) for factor in (2.0, 3.0, True)] == [2.0, 3.0, 1.0]


def test_a_global_that_changed_makes_another_function(monkeypatch):
    results = []
    for value in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", value)
        results.append(float(jax2tf.convert(_scaled)(tf.constant(1.0))))
    assert results == [2.0, 3.0, 2.0]


SCALE = 1.0


def _scaled(x):
    return x * SCALE


def test_functions_around_large_arrays_are_not_kept():
    table = np.ones((600, 600), "float32")
    PROGRAMS.clear()
    f = jax2tf.convert(lambda x: x @ table)
    f(tf.ones((1, 600)))
    assert not PROGRAMS._recent
