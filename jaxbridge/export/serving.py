"""Serving a SavedModel in a process of its own that cannot import JAX."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbridge.core.arguments import Kind, checked
from jaxbridge.errors import ExportError

#: What a signal usually means for a process that nobody ended by hand.
_USUAL = {
    "SIGKILL": "which usually means that the machine, or the container, was out of memory: see `dmesg`, give it more, or "
    "export where there is more",
    "SIGSEGV": "a crash inside TensorFlow",
    "SIGABRT": "a failed check inside TensorFlow",
    "SIGILL": "an instruction that this processor does not have: TensorFlow was built for another",
}

_SCRIPT = Path(__file__).with_name("_serve_script.py")


@checked(
    inputs=Kind(
        "a sequence of mappings from input names to arrays, one per call, such as [{'x': x}]",
        lambda value: isinstance(value, Sequence) and all(isinstance(case, Mapping) for case in value),
    )
)
def serve_without_jax(
    path: str | os.PathLike[str],
    inputs: Sequence[Mapping[str, Any]],
    *,
    signature: str = "serving_default",
    timeout: float = 600.0,
) -> list[dict[str, np.ndarray]]:
    """Runs a SavedModel in a fresh process in which importing jax, jaxlib, flax or jaxbridge raises.

    Args:
        path: the SavedModel's directory.
        inputs: one mapping from input names to arrays per call; the calls run in order.
        signature: the signature to call.
        timeout: seconds to wait for the process.

    Returns:
        One mapping from output names to numpy arrays per call.

    Raises:
        ExportError: the SavedModel cannot be loaded or run; the message ends with what the process printed.

    Example:
        served = serve_without_jax("served", [{"images": images}])[0]["logits"]
    """
    if not (Path(path) / "saved_model.pb").exists():
        raise ExportError(f"{path} is no SavedModel: it has no file saved_model.pb.")
    with tempfile.TemporaryDirectory() as folder:
        given, returned = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        arrays = {f"{call}/{name}": np.asarray(v) for call, case in enumerate(inputs) for name, v in case.items()}
        np.savez(given, **{name: _storable(array) for name, array in arrays.items()})  # pyright: ignore[reportArgumentType]
        # -P keeps the script's folder off the path: its files have names of the standard library.
        command = [sys.executable, "-P", str(_SCRIPT), str(path), str(given), signature, str(returned)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            raise ExportError(f"Serving {path} did not end within {timeout:.0f} seconds.") from error
        if result.returncode != 0:
            mistake = Path(f"{returned}.mistake")
            if mistake.exists():
                raise ExportError(f"{path} cannot be served as asked: {mistake.read_text(encoding='utf-8')}")
            raise ExportError(
                f"{path} cannot be served without JAX: {_reason(result.returncode, result.stderr.strip())}"
            )
        with np.load(returned) as outputs:
            served: list[dict[str, np.ndarray]] = [{} for _ in inputs]
            for key in outputs.files:
                call, name = key.split("/", 1)
                served[int(call)][name] = outputs[key]
    return served


def _reason(code: int, printed: str) -> str:
    """Returns why the process ended: what it printed, and the signal that ended it."""
    text = printed[-3000:]
    if code >= 0:
        return f"exit code {code}.\n{text}"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    usual = _USUAL.get(name, "")
    return f"its process was ended by {name}{usual and f', {usual}'}.{text and f' It printed:{chr(10)}{text}'}"


def _storable(array: np.ndarray) -> np.ndarray:
    """Returns an array as numpy's file format takes it: it has no bfloat16 (float32 holds all its values), no objects."""
    if array.dtype == object:
        return array.astype(bytes if all(isinstance(value, bytes) for value in array.flat) else str)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
