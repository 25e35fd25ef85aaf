"""Results of the processes with several devices: one for JAX, one for TensorFlow, started once and side by side."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def workers(tmp_path_factory):
    """The running processes by backend, each with the file that it writes."""
    folder = tmp_path_factory.mktemp("layouts")
    environments = {
        "jax": {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            # Models of different kinds are the same program.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
        "tensorflow": {},
    }
    found = {}
    for backend, environment in environments.items():
        path, log = folder / f"{backend}.json", folder / f"{backend}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.distribution.{backend}_worker", str(path)],
                env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        found[backend] = process, path, log
    yield found
    for process, _, _ in found.values():
        process.kill()  # where nobody waited for it
        process.wait()


def results_of(workers: dict, backend: str) -> dict:
    process, path, log = workers[backend]
    assert process.wait() == 0, log.read_text()[-4000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def on_jax(workers):
    """What `jax_worker` found on 8 virtual CPUs."""
    return results_of(workers, "jax")


@pytest.fixture(scope="session")
def on_tensorflow(workers):
    """What `tensorflow_worker` found."""
    return results_of(workers, "tensorflow")
