"""The examples run, on the current backend, and reach what they promise."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def imported(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)  # a file names classes by their module
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def test_toy_library(capsys):
    assert imported("toy_library").main() == 0
    assert "the same after loading: True" in capsys.readouterr().out


@pytest.mark.slow  # `.ci/run` runs the example itself, in A on JAX and in B on TensorFlow
def test_digits(tmp_path):
    digits = imported("digits")
    assert digits.main(epochs=10, out=tmp_path) == 0
    for name in ("predictions.png", "learning_curve.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()


@pytest.mark.slow
def test_sharded_transformer(tmp_path):
    """In a process of its own: it makes 8 devices, on the JAX backend."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(EXAMPLES.parent)}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, str(EXAMPLES / "sharded_transformer.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for line in ("Block_0/wide/kernel", "the file says: mesh {'data': 2, 'model': 4}", "(32, 64) of (32, 128)"):
        assert line in done.stdout
