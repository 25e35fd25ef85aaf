"""The example runs, on the current backend, and reaches what it promises."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.py"


@pytest.mark.slow  # `.ci/run` runs the example itself, in A on JAX and in B on TensorFlow
def test_digits(tmp_path):
    spec = importlib.util.spec_from_file_location("digits", EXAMPLE)
    digits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    assert digits.main(epochs=10, out=tmp_path) == 0
    for name in ("predictions.png", "learning_curve.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
