"""Every test starts from the same global seeds, on the Keras backend that was asked for."""

import os

import jax
import keras
import pytest

# It starts a process for each backend, so that once is enough when the suite runs on both.
collect_ignore = [] if keras.config.backend() == "jax" else ["test_parity.py"]


def pytest_report_header(config):
    return f"keras backend: {keras.config.backend()}"


@pytest.fixture(autouse=True, scope="session")
def compilation_cache(tmp_path_factory):
    """Lets equal programs of different tests share a compilation: most of the time is XLA's."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def fresh_keras():
    asked_for = os.environ.get("KERAS_BACKEND")
    assert asked_for in (None, keras.config.backend()), "the backend that was asked for is not in use"
    keras.utils.clear_session(free_memory=False)  # a collection of garbage takes longer than most tests
    keras.utils.set_random_seed(0)
