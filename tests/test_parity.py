"""The same numbers on every backend: values, gradients, state, draws, and weights after three steps of fit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cases import CASES

#: Minutes in a process per backend; `.ci/run` runs it in one environment.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "tensorflow")

#: Sums of float32 in another order; after training steps errors have been through three updates and back.
RTOL, ATOL = 2e-5, 2e-6
RTOL_FITTED, ATOL_FITTED = 2e-4, 2e-5

PROPERTIES = ["initial", "inference", "gradients", "training", "state", "seed", "fitted"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each backend gives, from two processes that run side by side."""
    folder = tmp_path_factory.mktemp("parity")
    running = {}
    for backend in BACKENDS:
        command = [sys.executable, "-m", "tests.parity_worker", str(folder / f"{backend}.npz")]
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
        running[backend] = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    found = {}
    for backend, process in running.items():
        output, _ = process.communicate()
        assert process.returncode == 0, output
        with np.load(folder / f"{backend}.npz") as file:
            found[backend] = {name: file[str(index)] for index, name in enumerate(file["names"].tolist())}
    return found


def difference(ours, other, rtol, atol):
    """Names the first leaf that differs, and by how much."""
    if list(ours) != list(other):
        return f"leaves differ: {sorted(set(ours) ^ set(other))[:3]}"
    for name, a in ours.items():
        b = other[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        same = np.isclose(a, b, rtol, atol) if np.issubdtype(a.dtype, np.inexact) else a == b
        if not np.all(same):
            return f"{name}: {a[~same].flat[0]} and {b[~same].flat[0]}, at {int((~same).sum())} of {a.size} places"
    return None


@pytest.mark.parametrize("prop", PROPERTIES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_backends_agree(results, case, prop):
    start = f"{case.name}: ['{prop}']"
    ours, other = (
        {name: array for name, array in results[backend].items() if name.startswith(start)} for backend in BACKENDS
    )
    rtol, atol = (RTOL_FITTED, ATOL_FITTED) if prop == "fitted" else (RTOL, ATOL)
    found = difference(ours, other, rtol, atol)
    assert found is None, f"jax and tensorflow: {found}"


@pytest.mark.parametrize("prop", PROPERTIES)
def test_every_property_was_compared(results, prop):
    names = {name.split(":")[0] for name in results["jax"] if f": ['{prop}']" in name}
    expected = {
        "initial": {case.name for case in CASES if case.name != "no_params"},
        "fitted": {case.name for case in CASES if case.name != "no_params"},
        "state": {case.name for case in CASES if case.has_state},
        "seed": {case.name for case in CASES if case.draws},
    }
    assert names == expected.get(prop, {case.name for case in CASES})


def test_the_difference_is_found():
    one = {"a": np.zeros(2, "float32"), "b": np.ones(2, "float32")}
    assert (
        difference(one, {**one, "b": np.array([1, 1.1], "float32")}, RTOL, ATOL)
        == "b: 1.0 and 1.100000023841858, at 1 of 2 places"
    )
    assert difference(one, one, RTOL, ATOL) is None
