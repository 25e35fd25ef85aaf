"""Methods by name: a file may name those that a module's own class defines, and nothing else that an object has."""

from __future__ import annotations

import keras

from jaxbridge import adapters
from jaxbridge.errors import StructureError
from jaxbridge.layers.saving.names import custom_object
from jaxbridge.layers.saving.places import not_the_users


def check_method(cls: type | None, name: str, where: str, users: bool = False) -> None:
    """Checks that a file names a plain method.

    Args:
        cls: the class of the object; None if the object is of none that has methods to call.
        name: what the file says.
        where: how errors name the place.
        users: whether it must be code of the user's: of a class that was registered, or is in a module of the user's.

    Raises:
        StructureError: it is not the name of a method, or of one that the library's base class has.
    """
    is_name = name.isidentifier() and (not name.startswith("__") or name == "__call__")
    definer = next((base for base in cls.__mro__ if name in vars(base)), None) if cls else None
    if not is_name or ((cls or users) and not (cls and definer and _is_plain(cls, definer, name))):
        raise StructureError(
            f"{where}: {name!r:.80} is not the name of a method that {cls.__name__ if cls else 'a module'} defines."
        )
    if users and definer and not_the_users(definer.__module__) and not _is_registered(definer):
        raise StructureError(
            f"{where}: the file names the method '{name}' of {definer.__name__}, which {not_the_users(definer.__module__)}. "
            "Load the file with `safe_mode=False` if you trust it."
        )


def _is_plain(cls: type, definer: type, name: str) -> bool:
    member = vars(definer)[name]
    if isinstance(member, property | staticmethod | classmethod | type) or not callable(getattr(cls, name, None)):
        return False
    return name == "__call__" or definer not in _bases_of_libraries(cls)


def _bases_of_libraries(cls: type) -> set[type]:
    """Returns the base class of a library's modules (`flax.linen.Module`) and what it is derived from."""
    found: set[type] = {object}
    for library in adapters.libraries():
        if library != "builtins" and adapters.belongs(cls, library):
            adapter = adapters.load(library)
            handled = [base for base in cls.__mro__ if adapter.handles(base)]
            found |= set(handled[-1].__mro__) if handled else set()
    return found


def _is_registered(cls: type) -> bool:
    return custom_object(keras.saving.get_registered_name(cls)) is cls
