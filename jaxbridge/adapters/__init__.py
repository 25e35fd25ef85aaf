"""Floor 2: one file per module library, each making a PureModel of that library's modules; and the table of them."""

from __future__ import annotations

import functools
import importlib
from importlib import metadata
from typing import Any

from jaxbridge.adapters.base import Adapted as Adapted
from jaxbridge.adapters.base import Adapter as Adapter
from jaxbridge.adapters.base import ModuleOptions as ModuleOptions
from jaxbridge.errors import StructureError

#: Entry points of this group are adapters: the name is the library ("flax.linen"), the value the Adapter subclass
#: ("package.module:Class").
ENTRY_POINT_GROUP = "jaxbridge.adapters"

#: Library -> where its adapter is. Nothing is imported before a module of the library is seen.
_REGISTERED: dict[str, str | type[Adapter]] = {}


def register(library: str, adapter: str | type[Adapter]) -> None:
    """Adds an adapter, or puts one in the place of another.

    Args:
        library: the package whose classes are modules, such as "flax.linen".
        adapter: a subclass of `Adapter`, or where one is: "package.module:Class", imported when it is needed.

    Example:
        >>> from jaxbridge import adapters
        >>> adapters.register("toy_library", "toy_library.keras:ToyAdapter")
        >>> "toy_library" in adapters.libraries()
        True
    """
    _REGISTERED[library] = adapter
    load.cache_clear()


def libraries() -> tuple[str, ...]:
    """Returns the libraries that there are adapters for."""
    return tuple({**_entry_points(), **_REGISTERED})


def find_adapter(module: Any) -> Adapter:
    """Returns the adapter of a module (an instance, a class or a function).

    Raises:
        StructureError: there is none.
        MissingDependencyError: the library is not installed.
    """
    table = {**_entry_points(), **_REGISTERED}
    for library in sorted(table, key=len, reverse=True):
        if belongs(module, library):
            adapter = load(library)
            if adapter.handles(module):
                return adapter
    kind = f"the class {module.__name__}" if isinstance(module, type) else f"an object of type {type(module).__name__}"
    raise StructureError(
        f"`module`: No adapter knows {kind}. There are adapters for {', '.join(sorted(table))}. For another library, "
        "write one and add it with `jaxbridge.adapters.register` (docs/new_adapter.md)."
    )


def belongs(module: Any, library: str) -> bool:
    """Returns whether `module` is an object of a class, or a class, that has one of the library's among its bases."""
    classes = (*type(module).__mro__, *(module.__mro__ if isinstance(module, type) else ()))
    return any(f"{cls.__module__}.".startswith(f"{library}.") for cls in classes)


@functools.cache
def load(library: str) -> Adapter:
    """Returns the adapter of a library such as "flax.linen"; a MissingDependencyError if that is not installed."""
    where = {**_entry_points(), **_REGISTERED}.get(library)
    if where is None:
        raise StructureError(f"There is no adapter for {library}: import the package that registers it.")
    if isinstance(where, str):
        name, _, attribute = where.partition(":")
        where = getattr(importlib.import_module(name), attribute)
    if not (isinstance(where, type) and issubclass(where, Adapter)):
        raise StructureError(
            f"The adapter of {library} must be a subclass of jaxbridge.adapters.Adapter, got {where!r}."
        )
    return where()


@functools.cache
def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


for _library, _where in {
    "flax.linen": "linen:LinenAdapter",
    "flax.nnx": "nnx:NNXAdapter",
    "haiku": "haiku:HaikuAdapter",
    "equinox": "equinox:EquinoxAdapter",
    "builtins": "functions:FunctionAdapter",
}.items():
    register(_library, f"jaxbridge.adapters.{_where}")
