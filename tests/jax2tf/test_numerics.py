"""What a served file gives in low precision and in float32, beside jitted JAX; and 64-bit types."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from tests.jax2tf.helpers import run_python
from tests.jax2tf.numerics_cases import ROWS, SERVE, argument, difference, in_dtype


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder, module = tmp_path_factory.mktemp("numerics"), tf.Module()
    for name, row in ROWS.items():
        spec = [tf.TensorSpec(row.shape)]
        setattr(module, name, tf.function(jax2tf.convert(in_dtype(row)), input_signature=spec, autograph=False))
    tf.saved_model.save(module, folder / "saved")
    np.savez(folder / "given.npz", **{name: argument(row) for name, row in ROWS.items()})
    run_python(SERVE, folder, without=("jax", "jaxlib", "flax", "jaxbridge"))
    with np.load(folder / "outputs.npz") as outputs:
        return dict(outputs)


@pytest.mark.parametrize("name", list(ROWS))
def test_served(served: dict[str, np.ndarray], name: str):
    assert difference(served[f"{name}/0"], jax.jit(in_dtype(ROWS[name]))(argument(ROWS[name]))) <= ROWS[name].tolerance


WIDE = [("float64", 1 + 1e-12), ("int64", 2**40 + 1), ("uint64", 2**40 + 1), ("complex128", 1 + 1e-12j)]


@pytest.mark.parametrize(("dtype", "value"), WIDE)
def test_wide_types_are_kept_with_x64(dtype: str, value: Any):
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = jax2tf.convert(lambda x: x * 2)(tf.constant([value], dtype))
    assert got.dtype.name == dtype
    assert got.numpy()[0] == 2 * np.dtype(dtype).type(value)


@pytest.mark.parametrize(("dtype", "narrow"), [("float64", "float32"), ("int64", "int32"), ("complex128", "complex64")])
def test_one_warning_where_wide_types_are_narrowed(dtype: str, narrow: str):
    converted = jax2tf.convert(lambda x, y: (x["a"] + 1, y))
    args = {"a": tf.constant([1], dtype)}, np.ones(2, dtype)
    with pytest.warns(UserWarning, match=rf"'0/a' .{dtype} to {narrow}.*jax_enable_x64") as warned:
        for _ in range(3):
            first, _ = converted(*args)
    assert first.dtype.name == narrow
    assert len(warned) == 1


def test_python_numbers_are_narrowed_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jax2tf.convert(jnp.add)(1.0, 2).dtype == tf.float32
