"""The diagnosis: facts, checks with a verdict each, and the self-test."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbridge._optional import require
from jaxbridge.cli import versions
from jaxbridge.errors import MissingDependencyError

#: Exit codes. 2 is what click ends with for a wrong option.
WORKS, FAILS, NO_TENSORFLOW = 0, 1, 3

_TIMEOUT = 600.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One verdict.

    Attributes:
        name: what was looked at.
        status: "works", "limited" (jaxbridge works, something beside it does not), "missing" or "fails".
        detail: why, and what to do.
    """

    name: str
    status: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `jaxbridge doctor` found.

    Attributes:
        versions: package -> version; None where it is not installed.
        jax: what JAX writes and sees.
        tensorflow: what TensorFlow reads and sees; None where it cannot be imported.
        checks: the verdicts, the steps of the self-test among them.
    """

    versions: dict[str, str | None]
    jax: dict[str, Any]
    tensorflow: dict[str, Any] | None
    checks: list[Check]

    @property
    def exit_code(self) -> int:
        statuses = {check.status for check in self.checks}
        if "fails" in statuses:
            return FAILS
        return NO_TENSORFLOW if self.tensorflow is None else WORKS


def diagnose(self_test_on: Sequence[str]) -> Diagnosis:
    """Looks at the environment.

    Args:
        self_test_on: the Keras backends to run the self-test on; each takes some 15 seconds.
    """
    found = versions.installed_versions()
    jax_facts = versions.jax_facts()
    tensorflow, trouble = _tensorflow()
    checks = [Check("requirements", "fails", text) for text in versions.too_old(found)]
    checks += [] if checks else [Check("requirements", "works", "every installed package is new enough")]
    checks.append(_flax(found))
    if tensorflow is None:
        checks.append(trouble)
    else:
        checks += _pair(jax_facts, tensorflow)
    for backend in self_test_on:
        if tensorflow is None and backend == versions.TESTED_BACKENDS[1]:
            checks.append(Check(f"self-test on {backend}", "missing", "TensorFlow is not there"))
        else:
            checks += _self_test(backend, with_tensorflow=tensorflow is not None)
    return Diagnosis(found, jax_facts, tensorflow, checks)


def _tensorflow() -> tuple[dict[str, Any] | None, Check]:
    try:
        require("tensorflow", "Converting, exporting and Keras' TensorFlow backend")
        return versions.tensorflow_facts(), Check("TensorFlow", "works", "")
    except MissingDependencyError as error:
        return None, Check("TensorFlow", "missing", f"{error} Layers on Keras' JAX backend work without it.")
    except Exception as error:  # a broken installation raises anything
        return None, Check("TensorFlow", "fails", f"{type(error).__name__}: {error}")


def _flax(found: dict[str, str | None]) -> Check:
    if found["flax"] is None:
        return Check("Flax", "missing", "FlaxLayer needs it: pip install flax. JaxLayer works without it.")
    return Check("Flax", "works", f"FlaxLayer takes the modules of flax {found['flax']}")


def _pair(jax: dict[str, Any], tensorflow: dict[str, Any]) -> Iterator[Check]:
    """Yields what JAX and TensorFlow can do together, with jaxbridge and without."""
    written, read = jax["stablehlo_written"], tensorflow["stablehlo_read"]
    ours = tensorflow["written"]
    yield Check(
        "JAX to TensorFlow",
        "works",
        f"jaxbridge writes StableHLO {ours['stablehlo']} with calling convention {ours['calling_convention']}: JAX writes "
        f"up to {written}, TensorFlow reads up to {read}",
    )
    newer = tuple(map(int, written.split("."))) > tuple(map(int, read.split(".")))
    convention = jax["calling_conventions"][1] > tensorflow["calling_convention"]
    if newer or convention:
        yield Check(
            "other exporters",
            "limited",
            "JAX writes newer modules than TensorFlow reads: jax.experimental.jax2tf, and with it Keras' export on the JAX "
            "backend and orbax-export, may write files that cannot be served. Run them under `jaxbridge.jax2tf.patch()`",
        )
    else:
        yield Check("other exporters", "works", "TensorFlow reads what jax.experimental.jax2tf writes")


def _self_test(backend: str, with_tensorflow: bool) -> Iterator[Check]:
    """Yields a check per step of the self-test, which runs in a process of its own: a wrong pair can end it."""
    command = [sys.executable, "-m", "jaxbridge.cli.self_test", *([] if with_tensorflow else ["--no-tensorflow"])]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    name = f"self-test on {backend}"
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env=environment, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        yield Check(name, "fails", f"did not end within {_TIMEOUT:.0f} seconds")
        return
    for line in result.stdout.splitlines():
        if line.startswith("STEP "):
            step = json.loads(line[5:])
            yield Check(
                f"{name}: {step['name']}", "fails" if step["error"] else "works", step["error"] or step["detail"]
            )
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        yield Check(name, "fails", f"ended with exit code {result.returncode}: {last[:500]}")
