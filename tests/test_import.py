"""`import jaxbridge` must be cheap and work without any optional package."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def fresh(source: str) -> str:
    """Returns what a fresh interpreter on Keras' JAX backend prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERAS_")}
    environment["KERAS_BACKEND"] = "jax"
    command = [sys.executable, "-c", source]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The modules that a fresh interpreter has after `import jaxbridge` on the JAX backend."""
    return set(
        json.loads(fresh("import json, sys, jaxbridge; print(json.dumps(sorted(sys.modules)))").splitlines()[-1])
    )


def test_the_classes_are_registered_whatever_the_program_is_called():
    source = """
        import sys
        sys.argv = ["/usr/bin/jaxbridge"]
        import jaxbridge, keras
        assert keras.saving.get_registered_object("jaxbridge>JaxLayer") is jaxbridge.JaxLayer
    """
    fresh(textwrap.dedent(source))


def test_the_command_imports_nothing_before_it_needs_it():
    source = "import json, sys, jaxbridge_cli.commands; print(json.dumps(sorted(sys.modules)))"
    found = {name.split(".")[0] for name in json.loads(fresh(source).splitlines()[-1])}
    assert "jaxbridge_cli" in found and not found & {"jaxbridge", "keras", "jax", "numpy", "tensorflow"}


@pytest.mark.parametrize("package", ["flax", "haiku", "equinox", "tensorflow"])
def test_no_optional_package_is_imported(imported: set[str], package: str):
    assert "jaxbridge" in imported
    assert package not in imported


def test_without_tensorflow_it_says_which_backend_to_set(tmp_path: Path):
    source = """
        import sys
        sys.modules["tensorflow"] = None  # an import is a ModuleNotFoundError
        try:
            import jaxbridge
        except ImportError as error:
            print(type(error).__name__, error)
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERAS_")}
    environment["KERAS_HOME"] = str(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(source)]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert "MissingDependencyError" in result.stdout and "KERAS_BACKEND=jax" in result.stdout, result.stderr
