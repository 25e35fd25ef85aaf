"""Results of the processes with several devices: one for JAX, one for TensorFlow, each started once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def results_of(module: str, folder: Path, **environment: str) -> dict:
    path = folder / "results.json"
    process = subprocess.run(
        [sys.executable, "-m", f"tests.distribution.{module}", str(path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def on_jax(tmp_path_factory):
    """What `jax_worker` found on 8 virtual CPUs."""
    folder = tmp_path_factory.mktemp("layouts_jax")
    return results_of(
        "jax_worker",
        folder,
        KERAS_BACKEND="jax",
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        # Models of different kinds are the same program.
        JAX_COMPILATION_CACHE_DIR=str(folder / "xla"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )


@pytest.fixture(scope="session")
def on_tensorflow(tmp_path_factory):
    """What `tensorflow_worker` found."""
    return results_of("tensorflow_worker", tmp_path_factory.mktemp("layouts_tf"), KERAS_BACKEND="tensorflow")
