"""`import jaxbridge` must be cheap and work without any optional package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The modules that a fresh interpreter has after `import jaxbridge` on the JAX backend."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERAS_")}
    environment["KERAS_BACKEND"] = "jax"
    command = [sys.executable, "-c", "import json, sys, jaxbridge; print(json.dumps(sorted(sys.modules)))"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", ["flax", "haiku", "equinox", "tensorflow"])
def test_no_optional_package_is_imported(imported: set[str], package: str):
    assert "jaxbridge" in imported
    assert package not in imported
