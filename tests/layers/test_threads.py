"""Many threads at once, on layers of their own that share what was made of their function, and on one layer."""

import threading

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer
from jaxbridge.core.programs import PROGRAMS

THREADS = 16
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        x = nn.BatchNorm(use_running_average=not training)(nn.relu(nn.Dense(6)(x)))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=not training)(x))


def model_of():
    model = keras.Sequential([keras.Input((4,)), FlaxLayer(Net(), seed=3)])
    model.compile("sgd", "mse")
    return model


def in_threads(work):
    """Runs `work(n)` in every thread at the same time, and returns what they gave."""
    barrier, results, errors = threading.Barrier(THREADS), [None] * THREADS, []

    def run(n):
        barrier.wait()
        try:
            results[n] = work(n)
        except Exception as error:  # of a thread, which would end there
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return results


def weights(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_each_fits_a_model_of_its_own():
    PROGRAMS.clear()
    models = [model_of() for _ in range(THREADS)]
    in_threads(lambda n: models[n].fit(X, X[:, :1], shuffle=False, verbose=0))
    for model in models[1:]:
        for got, want in zip(weights(model), weights(models[0]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.keras_backends("tensorflow")
@pytest.mark.parametrize("shared", [False, True], ids=["own layer", "one layer"])
def test_each_asks_a_tape(shared):
    import tensorflow as tf

    PROGRAMS.clear()
    models = [model_of()] * THREADS if shared else [model_of() for _ in range(THREADS)]

    def gradients(n):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                x = tf.constant(X)
                tape.watch(x)
                outer.watch(x)
                loss = tf.reduce_sum(models[n](x) ** 2)
            first = tape.gradient(loss, x)
        return first.numpy(), outer.gradient(first, x).numpy()

    for found in (results := in_threads(gradients))[1:]:
        for got, want in zip(found, results[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_all_call_one_layer():
    PROGRAMS.clear()
    model = model_of()
    results = in_threads(lambda n: keras.ops.convert_to_numpy(model(X[: 1 + n % 4])))
    for n, got in enumerate(results):
        np.testing.assert_allclose(got, results[3][: 1 + n % 4], rtol=1e-5, atol=1e-6)


@pytest.mark.keras_backends("tensorflow")
def test_each_converts_the_same_function():
    import jax.numpy as jnp
    import tensorflow as tf

    from jaxbridge import jax2tf

    converted = jax2tf.convert(lambda x: jnp.sin(x) ** 2, polymorphic_shapes="b, _")

    def gradient(n):
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = (converted if n % 2 else tf.function(converted, autograph=False))(x)
        return tape.gradient(y, x).numpy()

    for found in in_threads(gradient):
        np.testing.assert_allclose(found, np.sin(2 * X), rtol=1e-5, atol=1e-6)


def test_each_saves_and_loads(tmp_path):
    models = [model_of() for _ in range(THREADS)]

    def saved(n):
        models[n].save(tmp_path / f"{n}.keras")
        loaded = keras.saving.load_model(tmp_path / f"{n}.keras", custom_objects={"Net": Net})
        return keras.ops.convert_to_numpy(loaded(X))

    for n, found in enumerate(in_threads(saved)):
        np.testing.assert_allclose(found, models[n](X), rtol=1e-5, atol=1e-6)
