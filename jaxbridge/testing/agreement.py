"""One call that says whether a layer gives the same on Keras' JAX and TensorFlow backends."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbridge.core.arguments import Kind, checked, whole_number
from jaxbridge.core.references import Reference
from jaxbridge.errors import JaxBridgeError

BACKENDS = ("jax", "tensorflow")


class BackendsDisagree(AssertionError):
    """A layer gives different results on two backends; the message names the first leaf that differs."""


class WorkerFailed(JaxBridgeError, RuntimeError):
    """A backend's process ended with an error."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a backend's process is asked to do.

    Attributes:
        factory: the function that makes the layer.
        cases: pairs of a label and the layer's positional inputs (a tuple of pytrees of numpy arrays).
        seed: Keras' global seed, set before the layer is made.
        own_weights: where to write this backend's weights.
        weights_of_others: files with weights that the other backends write meanwhile, by backend.
        export_to: where to export a model of the layer; None not to.
    """

    factory: Reference
    cases: tuple[tuple[str, tuple[Any, ...]], ...]
    seed: int
    own_weights: str
    weights_of_others: dict[str, str]
    export_to: str | None
    only_read: bool = False


@checked(
    inputs=Kind("a function of the sizes that makes the layer's inputs", callable),
    sizes=Kind(
        "a sequence of mappings such as {'b': 2, 't': 5}",
        lambda value: isinstance(value, Sequence) and all(isinstance(size, Mapping) for size in value),
    ),
    seed=Kind(
        "an integer of at least 0 and below 2**32", lambda value: whole_number(0).accepts(value) and value < 2**32
    ),
)
def assert_backends_agree(
    layer_factory: Callable[[], Any],
    inputs: Callable[..., Any],
    sizes: Sequence[Mapping[str, int]] = ({},),
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    export: bool = True,
    seed: int = 0,
    timeout: float = 600.0,
) -> None:
    """Runs a layer on Keras' JAX and TensorFlow backends, each in its own process, and compares everything.

    Compared, for inputs of each size: the outputs at inference and in training mode, gradients of a scalar with respect
    to every trainable variable and floating input, the state and the draws after training calls, the variables' paths;
    then the weights that each backend wrote, read by the other, and (`export`) what TensorFlow serves without JAX.
    Sizes that differ between the entries of `sizes`, and the batch, are unknown when the layer is built: so a function
    that takes another branch for an unknown size than for a concrete one (`if x.shape[1] == 7`) is found, if 7 is among
    the sizes.

    Args:
        layer_factory: makes the layer; a function at the top level of an importable module or of a file.
        inputs: makes the layer's inputs (a pytree of numpy arrays; a tuple is several positional inputs) for sizes:
            called with each entry of `sizes` as keyword arguments.
        sizes: such as ({"b": 2, "t": 5}, {"b": 3, "t": 7}).
        rtol: allowed difference, relative to the largest value of a leaf; of a gradient, to that of all gradients.
        atol: allowed absolute difference.
        export: whether to export the layer on both backends and to compare what is served.
        seed: Keras' global seed in both processes.
        timeout: seconds that each process may take.

    Raises:
        BackendsDisagree: (an AssertionError) with the first leaf that differs.
        WorkerFailed: a backend raised; the message ends with its traceback.

    Example:
        def make():
            return FlaxLayer(MyModule(), name="net")

        def test_my_module():
            assert_backends_agree(make, lambda b, t: np.ones((b, t, 8), "float32"), [{"b": 2, "t": 5}, {"b": 3, "t": 7}])
    """
    cases = tuple((_label(size), _positional(inputs(**size))) for size in sizes)
    with tempfile.TemporaryDirectory() as folder:
        weights = {name: str(Path(folder, f"{name}.weights.h5")) for name in BACKENDS}
        jobs = {
            name: Job(
                factory=_importable(layer_factory),
                cases=cases,
                seed=seed,
                own_weights=weights[name],
                weights_of_others={other: file for other, file in weights.items() if other != name},
                export_to=str(Path(folder, f"{name}-export")) if export else None,
            )
            for name in BACKENDS
        }
        results = _run(jobs, Path(folder), timeout)
    first, second = BACKENDS
    _compare(results[first], results[second], rtol, atol)
    for name in BACKENDS:
        _compare_with_itself(name, results[name], rtol, atol)


def _compare(jax_results: dict[str, Any], tf_results: dict[str, Any], rtol: float, atol: float) -> None:
    for key, wanted in jax_results.items():
        if key.startswith("read "):
            continue
        if key not in tf_results:
            raise BackendsDisagree(f"{key}: there on jax and not on tensorflow.")
        _compare_leaf(key, wanted, tf_results[key], ("jax", "tensorflow"), rtol, atol, _scale_of(key, jax_results))
    for key in tf_results:
        if key not in jax_results and not key.startswith("read "):
            raise BackendsDisagree(f"{key}: there on tensorflow and not on jax.")


def _scale_of(key: str, results: dict[str, Any]) -> float:
    """Returns the largest value that a leaf's differences are relative to: of a gradient that of all gradients.

    One that is zero but for rounding (of a bias before a normalization, or where the inputs are all ones) has no size of
    its own.
    """
    if not key.startswith("gradient"):
        return _largest(results[key])
    label = key.split(" at ", 1)[1].split(", leaf", 1)[0]
    ends = f" at {label}"
    return max(_largest(value) for other, value in results.items() if _is_gradient_at(other, ends))


def _is_gradient_at(key: str, ends: str) -> bool:
    return key.startswith("gradient") and key.split(", leaf", 1)[0].endswith(ends)


def _largest(value: Any) -> float:
    if isinstance(value, str):
        return 0.0
    absolute = np.abs(np.asarray(value, np.complex128 if value.dtype.kind == "c" else np.float64))
    return float(absolute[np.isfinite(absolute)].max(initial=0.0))


def _compare_with_itself(name: str, results: dict[str, Any], rtol: float, atol: float) -> None:
    """What a backend gives with weights that the other wrote, and what it serves, against what it gave."""
    for key, value in results.items():
        for prefix in ("read ", "served "):
            if key.startswith(prefix):
                original = key.split(": ", 1)[1]
                scale = _largest(results[original])
                _compare_leaf(key, results[original], value, (name, key.split(":")[0]), rtol, atol, scale)


def _compare_leaf(
    key: str, wanted: Any, have: Any, names: tuple[str, str], rtol: float, atol: float, scale: float
) -> None:
    if isinstance(wanted, str) or isinstance(have, str):
        if wanted != have:
            raise BackendsDisagree(f"{key}: {wanted} on {names[0]} and {have} on {names[1]}.")
        return
    if wanted.shape != have.shape or wanted.dtype != have.dtype:
        raise BackendsDisagree(
            f"{key}: {wanted.dtype}{list(wanted.shape)} on {names[0]} and {have.dtype}{list(have.shape)} on {names[1]}."
        )
    first, second = (
        np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64) for array in (wanted, have)
    )
    close = np.isclose(second, first, rtol=0, atol=atol + rtol * scale, equal_nan=True)
    if not close.all():
        worst = np.unravel_index(
            np.argmax(np.where(close, 0, np.abs(np.nan_to_num(second - first, nan=np.inf)))), first.shape
        )
        raise BackendsDisagree(
            f"{key}: differs at {tuple(map(int, worst))}: {wanted[worst]} on {names[0]} and {have[worst]} on {names[1]} "
            f"({np.count_nonzero(~close)} of {first.size} values differ by more than {atol + rtol * scale:.3g})."
        )


def _label(size: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in size.items()) or "the inputs"


def _positional(inputs: Any) -> tuple[Any, ...]:
    return inputs if type(inputs) is tuple else (inputs,)


def _importable(factory: Callable[[], Any]) -> Reference:
    reference = Reference.to(factory)
    if reference is None:
        raise TypeError(
            f"`layer_factory` must be a function at the top level of a module, since each backend's process imports it; got "
            f"{factory!r}. Write `def make(): return ...` outside of the test."
        )
    return reference


def _run(jobs: Mapping[str, Job], folder: Path, timeout: float) -> dict[str, dict[str, Any]]:
    """Runs every backend's job at the same time and returns their results."""
    processes: dict[str, subprocess.Popen[str]] = {}
    deadline = time.monotonic() + timeout
    try:
        for backend, job in jobs.items():
            (folder / f"{backend}.job").write_bytes(pickle.dumps(job))
            processes[backend] = _start(backend, folder)
        while True:
            codes = [process.poll() for process in processes.values()]
            if None not in codes or any(codes):
                break
            if time.monotonic() > deadline:
                raise WorkerFailed(f"The layer did not end within {timeout:.0f} seconds.")
            time.sleep(0.05)
        for backend, process in processes.items():
            if process.poll():
                text = (folder / f"{backend}.output").read_text().strip()[-4000:]
                raise WorkerFailed(f"The layer failed on Keras' {backend} backend:\n{text}")
    finally:
        # One that failed would leave the other waiting for its weights.
        for process in processes.values():
            process.kill()
            process.wait()
    return {backend: pickle.loads((folder / f"{backend}.results").read_bytes()) for backend in jobs}


def _start(backend: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    files = [str(folder / f"{backend}.{kind}") for kind in ("job", "results")]
    with (folder / f"{backend}.output").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxbridge.testing.worker", *files],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
