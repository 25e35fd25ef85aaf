"""Layers of 64 bits while JAX's 64-bit types are off: computed in 32, with a warning, on both backends."""

import flax.linen as nn
import jax
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer, export_saved_model

X = np.random.default_rng(0).normal(size=(4, 3))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not training)(x))


def float64_layer():
    return FlaxLayer(Net(), dtype="float64", seed=0)


def float32_outputs(layer):
    narrow = FlaxLayer(Net(), seed=0)
    narrow.build(X.shape)
    narrow.set_weights([w.astype("float32") for w in layer.get_weights()])
    return keras.ops.convert_to_numpy(narrow(X.astype("float32")))


@pytest.mark.keras_backends("tensorflow")
def test_it_runs_and_trains_in_32_bits():
    layer = float64_layer()
    model = keras.Sequential([keras.Input((3,), dtype="float64"), layer])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="float64 to float32.*jax_enable_x64"):
        got = keras.ops.convert_to_numpy(model(X))
    np.testing.assert_allclose(got, float32_outputs(layer), rtol=1e-5, atol=1e-6)
    before = layer.get_weights()
    model.fit(X, np.zeros((4, 2)), verbose=0)
    assert all(not np.array_equal(old, new) for old, new in zip(before, layer.get_weights(), strict=True))


@pytest.mark.keras_backends("tensorflow")
def test_built_in_64_bits_and_called_without():
    with jax.enable_x64(True):
        layer = FlaxLayer(nn.Dense(2, param_dtype="float64"), dtype="float64", seed=0)
        wide = keras.ops.convert_to_numpy(layer(X))
    assert wide.dtype == np.float64
    with pytest.warns(UserWarning, match="float64 to float32"):
        got = keras.ops.convert_to_numpy(layer(X))
    np.testing.assert_allclose(got, wide, rtol=1e-5, atol=1e-6)


def test_exported_as_it_computes(tmp_path):
    """On JAX a variable that says float64 holds 32 bits."""
    model = keras.Sequential([keras.Input((3,), dtype="float64"), float64_layer()])
    report = export_saved_model(model, tmp_path / "served")
    assert report.verification is not None and report.verification.max_difference <= 1e-5


@pytest.mark.parametrize("dtype", ["complex128", "int64", "uint64"])
def test_inputs_of_64_bits_are_narrowed(dtype):
    layer = JaxLayer(lambda inputs: inputs * 2)
    got = keras.ops.convert_to_numpy(layer(np.array([1, 2], dtype)))
    assert got.dtype == {"complex128": "complex64", "int64": "int32", "uint64": "uint32"}[dtype]
    np.testing.assert_array_equal(got, [2, 4])
