"""Functions and classes by name: how files are written, and what they may name.

In Keras' safe mode a name stands for something only if it is on the list for the known libraries (`allowed.py`), was
registered with Keras or given as `custom_objects`, or is a function or a class at its own place in a module of the user's that
is imported. "Its own place": the module and the name that it says itself, so that `os.system` is not found through a module
that imported `os`.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import os
import sys
import types
import weakref
from typing import Any

import keras

from jaxbridge import adapters
from jaxbridge.errors import JaxBridgeError, StructureError
from jaxbridge.layers.saving import _keras_private
from jaxbridge.layers.saving.allowed import MORE_NAMESPACES, NAMES
from jaxbridge.layers.saving.places import namespace, not_the_users

#: What this process wrote: a layer that is copied (`keras.models.clone_model`) finds its own functions again.
_WRITTEN: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()


class Names:
    """What the names in one layer's config stand for, and how much memory its arrays would take.

    Args:
        safe_mode: that of the file that Keras loads, None where it loads none.
    """

    def __init__(self, safe_mode: bool | None):
        self.is_safe = safe_mode is not False
        self._is_file = safe_mode is not None
        self._bytes = 0

    @classmethod
    def now(cls) -> Names:
        """Returns the rules in effect."""
        return cls(_keras_private.safe_mode())

    def take(self, size: int, where: str) -> None:
        """Counts the bytes of an array that is described; a StructureError if all of them exceed the machine's memory."""
        self._bytes += size
        if self._bytes > _memory():
            raise StructureError(
                f"{where}: the arrays that the file describes take {self._bytes:,} bytes, more than the memory of this "
                f"machine ({_memory():,}). The file is damaged, or not to be trusted."
            )

    def find(self, where: str, module: str, name: str, registered: str | None) -> Any:
        """Returns the function or class of a name.

        Raises:
            StructureError: a file may not name it; the message says what to pass to the loading function.
        """
        found = custom_object(registered)
        if found is None:
            found = _of_library(module, name)
        if found is None:
            found = custom_object(name)
        if found is None:
            found = custom_object(short(name))
        if found is None and not self._is_file:
            found = _WRITTEN.get((module, name))
        if found is not None:
            return found
        return self._users(where, module, name) if self.is_safe else _imported(where, module, name)

    def _users(self, where: str, module: str, name: str) -> Any:
        found = at_own_place(module, name)
        why = not_the_users(module) or (_why_not(module, name) if found is None else _why_no_class(found))
        if why is None:
            return found
        if not module:  # as `keras.layers.JaxLayer` writes functions
            raise StructureError(
                f"{where}: the file names the function `{name}`, and not where it is. If you know which one it is, "
                f"load the file with `custom_objects={{'{short(name)}': {short(name)}}}`."
            )
        imports = " Import it before you load the file." if why == "which is not imported" else ""
        raise StructureError(
            f"{where}: the file names `{name}` of the module '{module}', {why}.{imports} If you know what it does and want it, "
            f"load the file with `custom_objects={{'{short(name)}': {module}.{name}}}`."
        )


def short(name: str) -> str:
    """Returns the name that `custom_objects` has for a qualified one."""
    return name.rpartition(".")[2]


def custom_object(name: str | None) -> Any:
    """Returns what is registered with Keras, or given as `custom_objects`, under a name; None if nothing is."""
    # `keras.saving.get_custom_objects()` has not what `load_model(custom_objects=)` was given.
    return None if name is None else keras.saving.get_registered_object(name)


def at_own_place(module: str, name: str) -> Any:
    """Returns the function or class that an imported module defines under a qualified name; None if there is none."""
    first, *others = name.split(".")
    found = namespace(module).get(first)
    for part in others:
        if not isinstance(found, type):
            return None
        member = vars(found).get(part)
        found = member.__get__(None, found) if isinstance(member, staticmethod | classmethod) else member
    itself = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return found if callable(found) and itself == (module, name) else None


def _of_library(module: str, name: str) -> Any:
    """Returns what the lists and the adapters allow under a name; None if nothing."""
    if name in NAMES.get(module, ()):
        return _public(module).get(name)
    # The libraries of the list are imported for their names; all others are there or not.
    found = _public(module).get(name) if module in NAMES else at_own_place(module, name)
    return found if isinstance(found, type) and _is_module_class(found) else None


def _public(module: str) -> dict[str, Any]:
    try:
        return vars(importlib.import_module(module))
    except ImportError:  # it is not installed: the adapter says so
        return {}


def _is_module_class(cls: type) -> bool:
    """Returns whether a library that has an adapter defines this class, and it is a class of its modules."""
    for library in _libraries(cls):
        if f"{cls.__module__}.".startswith(f"{library}.") and adapters.load(library).handles(cls):
            return True
    return False


def _libraries(cls: type) -> list[str]:
    """Returns the module libraries that a class derives from. "builtins" stands for plain functions."""
    return [one for one in adapters.libraries() if one != "builtins" and adapters.belongs(cls, one)]


def _why_no_class(found: Any) -> str | None:
    if not isinstance(found, type) or issubclass(found, enum.Enum) or _libraries(found):
        return None
    return "a class that is of no module library, so that nothing is known of what its constructor does"


def _why_not(module: str, name: str) -> str:
    first, *others = name.split(".")
    found = namespace(module).get(first)
    if found is None or "<" in name:
        return "which does not define it at its top level"
    if others and not isinstance(found, type):
        return "where that is reached through something that is no class"
    return "which did not define it"


def _imported(where: str, module: str, name: str) -> Any:
    """Returns what is found under a name where the user trusts the file."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise StructureError(
            f"{where}: the file names `{name}` of the module '{module}', which is not there: {error}. Load the file with "
            f"`custom_objects={{'{short(name)}': ...}}`."
        ) from error
    return found


def _memory() -> int:
    """Returns how many bytes of memory this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 1 << 40


def written_name(value: Any, where: str) -> tuple[str, str, str | None]:
    """Returns the module, the name and the registered name under which a function or class is found again.

    Raises:
        StructureError: what is found there is not this one.
    """
    name = getattr(value, "__name__", "")
    for module in (*NAMES, *MORE_NAMESPACES):
        # A library that is not imported has not made `value`.
        if namespace(module).get(name) is value:
            return module, name, None
    if not hasattr(value, "__qualname__"):
        raise StructureError(f"{where}, {value!r:.100}, has no name that a file could say.")
    module, name = str(value.__module__), str(value.__qualname__)
    registered = keras.saving.get_registered_name(value)
    is_registered = custom_object(registered) is value
    if not is_registered:
        _check_found(value, module, name, where)
    remember(value)
    return module, name, registered if is_registered else None


def remember(value: Any) -> None:
    """Lets a copy of a layer find a function or class that its config names."""
    with contextlib.suppress(TypeError):  # there is no weak reference to a builtin function or a bound method
        _WRITTEN[str(value.__module__), str(value.__qualname__)] = value


def _check_found(value: Any, module: str, name: str, where: str) -> None:
    found = at_own_place(module, name)
    # A bound method of a class is made anew at each access. In a notebook a cell that was run again defines others.
    is_defined = module == "__main__" and isinstance(value, types.FunctionType | type) and "<" not in name
    if found is value or found == value or (is_defined and not hasattr(value, "__wrapped__")):
        return
    if "<" in name:
        raise StructureError(
            f"{where} is `{name}`, which has no name at the top level of a module, so that a file cannot say which it is. "
            "Move it there, or register it with `keras.saving.register_keras_serializable`."
        )
    what = (
        f"the module '{module}' has something else under that name"
        if module in sys.modules
        else "no such module is imported"
    )
    raise StructureError(
        f"{where} says that it is `{name}` of '{module}', and {what}, so that a file cannot say which it is. Give it a name of "
        "its own there (`step = jax.jit(f)` is not `f`; a decorated function is what its name stands for), or register it with "
        "`keras.saving.register_keras_serializable`."
    )


def adapter_of(library: str, where: str) -> adapters.Adapter:
    """Returns the adapter of a library that a file names."""
    try:
        return adapters.load(library)
    except JaxBridgeError as error:
        raise type(error)(f"{where}: {error}") from error
