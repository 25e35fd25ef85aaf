"""Imports what jaxbridge stands on, a package after the other. Started by the doctor in a process of its own.

The arguments are the steps to take, keys of `STEPS`; the first one of which nothing is printed ended the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from jaxbridge_cli import steps


def _jax() -> dict[str, Any]:
    import jax.export

    from jaxbridge.core._jax_private import oldest_version, written_version

    return {
        "stablehlo_written": written_version(),
        "stablehlo_oldest": oldest_version(),
        "calling_conventions": [
            jax.export.minimum_supported_calling_convention_version,
            jax.export.maximum_supported_calling_convention_version,
        ],
    }


def _jax_devices() -> dict[str, Any]:
    import jax

    return {"devices": [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()]}


def _tensorflow() -> dict[str, Any]:
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


def _keras() -> dict[str, Any]:
    import keras  # noqa: F401 (it imports its backend)

    package = sys.modules["jaxbridge"]
    assert package.__spec__ is not None and package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)
    from jaxbridge import backends

    backends.current()
    return {"backend": backends.name()}


def _importing(name: str) -> Callable[[], dict[str, Any]]:
    def step() -> dict[str, Any]:
        importlib.import_module(name)
        return {}

    return step


#: Name -> what is done, which returns facts or raises. TensorFlow comes before Keras, which may import it.
STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "jax": _jax,
    "jax devices": _jax_devices,
    "tensorflow": _tensorflow,
    "keras": _keras,
    "flax": _importing("flax"),
    "haiku": _importing("haiku"),
    "equinox": _importing("equinox"),
}


def _bare_package() -> None:
    """Lets files of jaxbridge be imported without its `__init__`, which imports all layers, and Keras with them."""
    spec = importlib.util.find_spec("jaxbridge")
    assert spec is not None
    sys.modules["jaxbridge"] = importlib.util.module_from_spec(spec)


if __name__ == "__main__":
    _bare_package()
    for name in sys.argv[1:]:
        steps.take(name, STEPS[name])
