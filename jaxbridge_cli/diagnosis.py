"""The diagnosis: facts, checks with a verdict each, and the self-test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbridge_cli import steps, versions
from jaxbridge_cli.imports import Check, import_all, import_check

#: Exit codes. 2 is what click ends with for a wrong option.
WORKS, FAILS, NO_TENSORFLOW = 0, 1, 3


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `jaxbridge doctor` found.

    Attributes:
        versions: package -> version; None where it is not installed.
        jax: what JAX writes and sees; None where it cannot be imported.
        tensorflow: what TensorFlow reads and sees; None where it cannot be imported.
        checks: the verdicts, the steps of the self-test among them.
    """

    versions: dict[str, str | None]
    jax: dict[str, Any] | None
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
    taken = import_all()
    checks = [Check("requirements", "fails", text) for text in versions.too_old(found)]
    checks += [] if checks else [Check("requirements", "works", "every installed package is new enough")]
    checks += [import_check(step, found) for step in taken.values()]
    jax, tensorflow = taken["jax"].found, taken["tensorflow"].found
    if jax is not None:
        jax |= taken["jax devices"].found or {"devices": []}
    if jax and tensorflow:
        checks += _pair(jax, tensorflow)
    for backend in self_test_on:
        if tensorflow is None and backend == versions.TESTED_BACKENDS[1]:
            checks.append(Check(f"self-test on {backend}", "missing", "TensorFlow cannot be imported, see above"))
        else:
            checks += _self_test(backend, with_tensorflow=tensorflow is not None)
    return Diagnosis(found, jax, tensorflow, checks)


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
    name = f"self-test on {backend}"
    arguments = [] if with_tensorflow else ["--no-tensorflow"]
    taken, ended = steps.start("jaxbridge_cli.self_test", arguments, KERAS_BACKEND=backend)
    for step in taken:
        yield Check(f"{name}: {step.name}", "fails" if step.error else "works", step.error or step.found)
    if ended:
        yield Check(name, "fails", ended)
