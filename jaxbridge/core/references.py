"""Functions and classes by where they are defined, for a process that has to find them again."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
from typing import Any

#: The name under which a process knows the main file of the one that started it.
_OTHER_MAIN = "__jaxbridge_main__"


@dataclasses.dataclass(frozen=True)
class Reference:
    """Where a function or class is defined.

    Attributes:
        module: the module's name.
        file: the file of the module, for one that cannot be imported by its name.
        name: the qualified name in it.
    """

    module: str
    file: str
    name: str

    @classmethod
    def to(cls, target: Any) -> Reference | None:
        """Returns the reference to a function or class; None where it is not at the top level of a file."""
        name = getattr(target, "__qualname__", "<locals>")
        is_named = inspect.isfunction(target) or inspect.isclass(target)
        try:
            file = inspect.getsourcefile(target) if is_named else None
        except TypeError:  # a class of a session without a file
            file = None
        return None if "<" in name or file is None else cls(target.__module__, file, name)

    def load(self) -> Any:
        """Imports and returns what it refers to."""
        found = _load_file(_OTHER_MAIN, self.file) if self.module == "__main__" else self._import()
        for part in self.name.split("."):
            found = getattr(found, part)
        return found

    def _import(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ImportError:
            return _load_file(self.module, self.file)


def _load_file(name: str, file: str) -> Any:
    """Runs a file as the module `name`, so that what it guards with `__name__ == "__main__"` is not run."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
