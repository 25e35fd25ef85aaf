"""What is installed, and what JAX and TensorFlow write, read and see. Works where TensorFlow or Flax are missing."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import Any

import jax
import jax.export

from jaxbridge.core._jax_private import oldest_version, written_version

TESTED_BACKENDS = ("jax", "tensorflow")

#: Module name -> the names of its packages on PyPI, the first that is installed counts.
_PACKAGES = {
    "jaxbridge": ("jaxbridge",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "keras": ("keras",),
    "numpy": ("numpy",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "flax": ("flax",),
    "haiku": ("dm-haiku",),
    "equinox": ("equinox",),
    "orbax-export": ("orbax-export",),
}


def installed_versions() -> dict[str, str | None]:
    """Returns name -> version, None for what is not installed; "python" is one of them."""
    return {"python": platform.python_version()} | {
        name: next(filter(None, map(_version, packages)), None) for name, packages in _PACKAGES.items()
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def too_old(versions: dict[str, str | None]) -> list[str]:
    """Returns a sentence for each package that is older than jaxbridge's own requirements say."""
    found = []
    for line in metadata.requires("jaxbridge") or ():
        match = re.match(r"([\w.-]+?)(?:-cpu)?>=([\d.]+)", line)
        have = versions.get(match[1].removeprefix("dm-")) if match else None
        if match and have and _numbers(have) < _numbers(match[2]):
            found.append(f"{match[1]} {have} is older than {match[2]}, the oldest that is supported.")
    return list(dict.fromkeys(found))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def jax_facts() -> dict[str, Any]:
    """Returns what the installed JAX writes and sees."""
    return {
        "stablehlo_written": written_version(),
        "stablehlo_oldest": oldest_version(),
        "calling_conventions": [
            jax.export.minimum_supported_calling_convention_version,
            jax.export.maximum_supported_calling_convention_version,
        ],
        "devices": [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()],
    }


def tensorflow_facts() -> dict[str, Any]:
    """Returns what the installed TensorFlow reads and sees, and what is written for it.

    Raises:
        Exception: whatever its import raises.
    """
    import tensorflow as tf

    from jaxbridge.jax2tf import targets
    from jaxbridge.jax2tf.platforms import default_platforms

    here, written = targets.installed(), targets.resolve(None)
    return {
        "stablehlo_read": here.stablehlo,
        "calling_convention": here.calling_convention,
        "shardy": here.shardy,
        "devices": [f"{device.device_type}: {device.name}" for device in tf.config.list_physical_devices()],
        "default_platforms": list(default_platforms()),
        "written": {"stablehlo": written.stablehlo, "calling_convention": written.calling_convention},
    }
