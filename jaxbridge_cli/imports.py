"""Whether each package can be imported here, and what to do where it cannot."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from jaxbridge_cli import steps
from jaxbridge_cli.probe import STEPS
from jaxbridge_cli.versions import PACKAGES, TESTED_BACKENDS


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


def backend_advice() -> str:
    """Returns where Keras' backend comes from, and which to choose."""
    chosen = os.environ.get("KERAS_BACKEND")
    comes_from = f"is '{chosen}'" if chosen else "is not set, so Keras takes that of its keras.json, else tensorflow"
    return (
        f"The environment variable KERAS_BACKEND {comes_from}. jaxbridge runs on {' and '.join(TESTED_BACKENDS)}; keras "
        "imports the package of its backend"
    )


def _device_advice() -> str:
    chosen = os.environ.get("JAX_PLATFORMS")
    if not chosen:
        return "Look at the drivers, or set the environment variable JAX_PLATFORMS=cpu"
    return (
        f"The environment variable JAX_PLATFORMS is '{chosen}'. Unset it, or install JAX for that platform (for NVIDIA GPUs "
        "pip install 'jax[cuda12]')"
    )


def _tensorflow_advice() -> str:
    return (
        "Install it anew, and only one of tensorflow and tensorflow-cpu (they fill the same folder). Layers on Keras' JAX "
        "backend work without it"
    )


def _reinstall(package: str) -> Callable[[], str]:
    return lambda: f"Install it anew: pip install --force-reinstall {package}"


#: Step of the probe -> the check's name, what works, what is lost without it, what to do where it fails.
_TEXTS: dict[str, tuple[str, str, str, Callable[[], str]]] = {
    "jax": ("JAX", "jaxbridge finds what it needs of it", "", _reinstall("jax jaxlib")),
    "jax devices": ("JAX devices", "JAX starts on them", "", _device_advice),
    "tensorflow": (
        "TensorFlow",
        "jaxbridge finds what it needs of it",
        "Converting, exporting and Keras' TensorFlow backend need it; layers on Keras' JAX backend work without it.",
        _tensorflow_advice,
    ),
    "keras": ("Keras", "it runs on a backend that jaxbridge has", "", backend_advice),
    "flax": (
        "Flax",
        "FlaxLayer takes its modules",
        "FlaxLayer needs it; JaxLayer works without it.",
        _reinstall("flax"),
    ),
    "haiku": (
        "Haiku",
        "ModuleLayer takes its modules",
        "ModuleLayer needs it for its modules.",
        _reinstall("dm-haiku"),
    ),
    "equinox": (
        "Equinox",
        "ModuleLayer takes its modules",
        "ModuleLayer needs it for its modules.",
        _reinstall("equinox"),
    ),
}


def import_all() -> dict[str, steps.Step]:
    """Returns how each step of the probe went. One that ends the process is left out when the others are taken."""
    found: dict[str, steps.Step] = {}
    while left := [name for name in STEPS if name not in found]:
        taken, ended = steps.start("jaxbridge_cli.probe", left)
        found |= {step.name: step for step in taken}
        if culprit := next((name for name in left if name not in found), None):
            found[culprit] = steps.Step(culprit, f"The process that imported it {ended or 'ended early'}")
    return {name: found[name] for name in STEPS}


def import_check(step: steps.Step, versions: dict[str, str | None]) -> Check:
    """Returns the verdict on a step of the probe, given the installed versions."""
    name, works, lost, advice = _TEXTS[step.name]
    if not step.error:
        return Check(name, "works", works)
    if step.missing == step.name and versions.get(step.name) is None and lost:
        return Check(name, "missing", f"It is not installed: pip install {PACKAGES[step.name][0]}. {lost}")
    return Check(name, "fails", f"{step.error.rstrip('.')}. {advice()}.")
