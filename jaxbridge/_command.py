"""Whether this process is the command `jaxbridge`, which must speak where Keras cannot even be imported.

Everywhere else `import jaxbridge` imports its layers at once: that is what registers them for Keras' files.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = "jaxbridge"


def is_command() -> bool:
    """Returns whether this process is the command `jaxbridge`, `python -m jaxbridge` or a process that these start."""
    started = getattr(sys, "argv", [""])
    if started[:1] != ["-m"]:
        return bool(started) and Path(started[0]).stem == _PACKAGE
    # While the packages around the module of `-m` are imported, "-m" stands for it.
    module = sys.orig_argv[-len(started)].removeprefix("-m")
    return module == _PACKAGE or f"{module}.".startswith((f"{_PACKAGE}.cli.", f"{_PACKAGE}.__main__."))


def public_name(name: str) -> Any:
    """Returns a public name of the package, imported now."""
    # `from jaxbridge import backends` asks for the attribute before it imports the module, also while `_public` is imported.
    if not name.startswith("_") and find_spec(f"{_PACKAGE}.{name}") is None:
        public = importlib.import_module(f"{_PACKAGE}._public")
        if hasattr(public, name):
            return getattr(public, name)
    raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
