"""The only place that imports an optional package, or says how to install it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from jaxbridge.errors import MissingDependencyError

#: Module name -> (the package on PyPI, the extra of jaxbridge that brings it).
EXTRAS = {
    "tensorflow": ("tensorflow", "tensorflow"),
    "flax": ("flax", "flax"),
    "haiku": ("dm-haiku", "haiku"),
    "equinox": ("equinox", "equinox"),
    "rich": ("rich", "cli"),
}


def import_keras() -> None:
    """Imports Keras, which imports its backend: TensorFlow, where nobody says otherwise.

    Raises:
        MissingDependencyError: TensorFlow is not installed and nothing says that Keras is to use another backend.
    """
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tensorflow") or "KERAS_BACKEND" in os.environ:
            raise
        raise MissingDependencyError(
            "Keras uses TensorFlow unless it is told otherwise, and TensorFlow is not installed. Set the environment variable "
            "KERAS_BACKEND=jax before Keras is imported (`os.environ['KERAS_BACKEND'] = 'jax'`), or install TensorFlow with "
            "`pip install 'jaxbridge[tensorflow]'`."
        ) from error


def require(name: str, needed_for: str) -> ModuleType:
    """Imports the module `name` (such as "flax.linen") and returns it.

    Args:
        name: a dotted module name whose first part is a key of `EXTRAS`.
        needed_for: what the user asked for, to begin the sentence of the error with.

    Raises:
        MissingDependencyError: the package is not installed. An import error inside an installed package is not
            covered up: it is raised as it is.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        root = name.split(".")[0]
        if error.name != root:
            raise
        package, extra = EXTRAS[root]
        raise MissingDependencyError(
            f"{needed_for} needs {package}, which is not installed. "
            f"Install it with `pip install {package}` or `pip install 'jaxbridge[{extra}]'`."
        ) from error
