"""What is installed, by what the packages say of themselves: nothing is imported, as an import can end the process."""

from __future__ import annotations

import platform
import re
from importlib import metadata

TESTED_BACKENDS = ("jax", "tensorflow")

#: Module name -> the names of its packages on PyPI, the first that is installed counts.
PACKAGES = {
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
        name: next(filter(None, map(_version, packages)), None) for name, packages in PACKAGES.items()
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
