"""Verification sees a NaN that a file loses, and ordinary inputs all the same."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, export_saved_model
from jaxbridge.errors import ExportError
from jaxbridge.export import verify
from jaxbridge.jax2tf import stablehlo


class Largest(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.max(nn.Dense(4)(x)[:, None] * x[..., None], 1)


def model(**options) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), FlaxLayer(Largest(), **options)])


def test_a_file_that_loses_nan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    built = model()
    built(np.ones((2, 3), "float32"))
    monkeypatch.setattr(stablehlo, "keep_nan", lambda module: None)
    with pytest.raises(ExportError, match="that hold a NaN and an infinity"):
        export_saved_model(built, tmp_path / "served", platforms=("cpu", "cuda"))
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("nan", ["keep", "fast"])
def test_the_call_with_nan(nan: str, tmp_path: Path):
    report = export_saved_model(model(), tmp_path / "served", nan=nan)
    assert report.verification.with_nan == (nan == "keep")
    assert len(report.verification.input_shapes) == 2


def test_ordinary_rows_stay_beside_those_with_nan():
    array = verify._with_nan(np.ones((3, 4), "float32"))
    assert np.isfinite(array[0]).all()
    assert np.isinf(array[1]).sum() == np.isnan(array[2]).sum() == 1


@pytest.mark.parametrize("array", [np.ones((2, 3), "int32"), np.ones((2, 3), bool), np.ones((0, 3), "float32")])
def test_only_floats_can_hold_a_nan(array: np.ndarray):
    assert verify._with_nan(array) is array


def test_nan_of_the_file_alone_is_a_warning():
    """JAX's own compiler loses NaN in long reductions."""
    wanted, have = np.float32([1, 2]), np.float32([1, np.nan])
    with pytest.warns(UserWarning, match="gives NaN in 1 of 2 values"):
        assert verify._difference("y", wanted, verify._without_more_nan("y", wanted, have), [(2,)], 1e-4, True) == 0


@pytest.mark.parametrize("have", [[1, np.nan], [1, 2], [1, -np.inf]])
def test_what_is_not_finite_must_be_the_same(have: list[float]):
    with pytest.raises(ExportError, match="output 'y' differs"):
        verify._difference("y", np.float32([1, np.inf]), np.float32(have), [(2,)], 1e-4)


@pytest.mark.keras_backends("tensorflow")
def test_tensorflow_lite_takes_fast():
    """It has no reducer but its own, so a softmax that keeps NaN is refused."""
    import tensorflow as tf

    from jaxbridge import jax2tf

    def lite(nan: str) -> bytes:
        function = tf.function(jax2tf.convert(jax.nn.softmax, nan=nan, with_gradient=False), autograph=False)
        specs = [function.get_concrete_function(tf.TensorSpec((2, 3)))]
        return tf.lite.TFLiteConverter.from_concrete_functions(specs, function).convert()

    interpreter = tf.lite.Interpreter(model_content=lite("fast"))
    interpreter.allocate_tensors()
    x = np.float32([[1, 2, 3], [0, 0, 1]])
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(got, jax.nn.softmax(x), rtol=1e-6)
    with pytest.raises(Exception, match="reduce"):
        lite("keep")
