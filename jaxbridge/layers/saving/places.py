"""Where a module lies: whether its functions are the user's own code, which a file may name."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

from jaxbridge.layers.saving.allowed import LIBRARIES


def namespace(name: str) -> dict[str, Any]:
    """Returns what an imported module holds; nothing if there is none.

    No attribute is read: a module that loads parts of itself (`__getattr__`, `importlib.util.LazyLoader`) would import.
    """
    module = sys.modules.get(name)
    return object.__getattribute__(module, "__dict__") if isinstance(module, types.ModuleType) else {}


def not_the_users(name: str) -> str | None:
    """Returns why what a module holds is not the user's own imported code, for a message; None if it is."""
    root = name.partition(".")[0]
    if root in LIBRARIES:
        return f"which belongs to the library '{root}' and is not on the list of what files may name"
    if root in sys.stdlib_module_names - {"__main__"}:
        return "which belongs to Python itself"
    found = namespace(name)
    if not found:
        return "which is not imported"
    file = found.get("__file__")
    if not isinstance(file, str):
        # That of a notebook or an interactive session has none.
        return None if name == "__main__" else "which lies in no file"
    is_package = Path(file).stem == "__init__"
    above = 0 if name == "__main__" else name.count(".") + is_package
    return "which is installed, so that a file may not choose code there" if _installed(file, above) else None


@functools.cache
def _installed(file: str, above: int) -> bool:
    """Returns whether an installer put a file there, or Python came with it.

    Args:
        file: the file of a module.
        above: how many folders it lies below the one that is on Python's path.
    """
    for path in {Path(os.path.abspath(file)), Path(file).resolve()}:
        if {"site-packages", "dist-packages"} & set(path.parts):
            return True
        if path.is_relative_to(sysconfig.get_path("stdlib")):
            return True
        folder = path.parents[min(above, len(path.parents) - 1)]
        # `pip install --target` may fill any folder; an archive is none.
        if not folder.is_dir() or any(folder.glob("*.dist-info")):
            return True
    return False
