"""Throw-away Python environments, made with uv, for the scripts of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def make(folder: Path, python: str, packages: Sequence[str], arguments: Sequence[str] = ()) -> Path:
    """Makes an environment and returns its Python.

    Args:
        folder: where; an environment that is there already is replaced.
        python: version, such as "3.12".
        packages: requirements.
        arguments: more arguments of `uv pip install`.

    Raises:
        RuntimeError: uv is missing, or could not install; the message ends with what it printed.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is needed to make environments: pip install uv")
    interpreter = folder / "bin" / "python"
    _run([uv, "venv", "--quiet", "--clear", "--python", find_python(python), str(folder)])
    _run([uv, "pip", "install", "--quiet", "--python", str(interpreter), *arguments, *packages])
    return interpreter


def find_python(version: str) -> str:
    """Returns the path of a Python of that version (pyenv's shims are on PATH but run only the active ones), else it."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    return str(found[-1]) if found else version


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr.strip()[-2000:]}")


def run_quiet(command: Sequence[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the environment variables that keep TensorFlow silent, and returns what it printed."""
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
    )


if __name__ == "__main__":
    sys.exit("This file is imported by the other scripts of this folder.")
