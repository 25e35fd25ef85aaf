"""Which arguments of a module follow the mode."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxbridge.adapters.base import ModuleOptions
from jaxbridge.errors import SignatureError

#: Common names of the flag -> its values (in training mode, at inference).
COMMON: Mapping[str, tuple[bool, bool]] = {
    "training": (True, False),
    "train": (True, False),
    "is_training": (True, False),
    "deterministic": (False, True),
    "use_running_average": (False, True),
    "inference": (False, True),
}

Flags = dict[str, tuple[Any, Any]]

#: A path that leads nowhere.
_MISSING = object()


def asked_for(flag: str | Mapping[str, Sequence[Any]] | None) -> Flags | None:
    """Returns the option `training_flag` as names with pairs of values; None where it says nothing.

    Raises:
        SignatureError: a mapping's value is not a pair.
    """
    if flag is None:
        return None
    if isinstance(flag, str):
        return {flag: _values_of(flag)}
    for name, pair in flag.items():
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise SignatureError(
                f"`training_flag` gives {pair!r} for '{name}'. Write the pair of its values in training mode and at "
                f"inference, such as {{'{name}': {_values_of(name)}}}."
            )
    return {name: (pair[0], pair[1]) for name, pair in flag.items()}


def _values_of(flag: str) -> tuple[bool, bool]:
    return COMMON.get(flag.rpartition(".")[2], (True, False))


def of_signature(function: Callable[..., Any], options: ModuleOptions, fixed: Collection[str] = ()) -> Flags:
    """Returns the flags that are arguments of `function`: those asked for, else those of a common name.

    Args:
        function: what is called.
        options: the options.
        fixed: names that are found otherwise, or that the module has settled.
    """
    parameters = parameters_of(function)
    asked = asked_for(options.training_flag)
    if asked is None:
        return {name: pair for name, pair in COMMON.items() if name in parameters and name not in fixed}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return {name: pair for name, pair in asked.items() if name not in fixed and (takes_any or name in parameters)}


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function or class that may be given by name; none where they cannot be seen."""
    if isinstance(function, type):  # the metaclasses of NNX and Equinox show `(*args, **kwargs)`
        function = function.__init__
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in functions have no signature
        return {}
    return {name: p for name, p in parameters.items() if p.kind is not inspect.Parameter.POSITIONAL_ONLY}


def check_arguments(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises a SignatureError if a class cannot be called with these arguments."""
    try:
        inspect.signature(cls.__init__).bind(None, *args, **kwargs)
    except TypeError as error:
        raise SignatureError(
            f"`module` is the class {cls.__name__}, to be made with `args={tuple(args)!r}` and "
            f"`kwargs={dict(kwargs)!r:.200}`: {error}."
        ) from error


def check_all_found(options: ModuleOptions, found: Collection[str], module: Any) -> None:
    """Raises a SignatureError if a flag that was asked for is not there."""
    for name in asked_for(options.training_flag) or ():
        if name not in found:
            raise SignatureError(
                f"`training_flag` names '{name}', which {module} has neither as an argument of the method nor as an "
                "attribute."
            )


def has(owner: Any, path: str) -> bool:
    """Returns whether there is something at the path, such as "config.deterministic", of an object or mapping."""
    return _at(owner, path.split(".")) is not _MISSING


def _at(owner: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        owner = owner.get(part, _MISSING) if isinstance(owner, Mapping) else getattr(owner, part, _MISSING)
    return owner


def replaced(owner: Any, path: str, value: Any) -> Any:
    """Returns a copy of an object or mapping with another value at the path; the original is left alone.

    Raises:
        SignatureError: there is no way to copy one of the objects on the path.
    """
    name, _, rest = path.partition(".")
    new = replaced(_at(owner, [name]), rest, value) if rest else value
    if isinstance(owner, Mapping):
        return type(owner)({**owner, name: new})  # pyright: ignore[reportCallIssue]
    if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
        return owner.clone(**{name: new}) if hasattr(owner, "clone") else dataclasses.replace(owner, **{name: new})  # pyright: ignore
    if hasattr(owner, "_replace"):
        return owner._replace(**{name: new})
    copied = copy.deepcopy(owner)  # a shallow one of a ConfigDict would share its fields
    try:
        setattr(copied, name, new)
    except AttributeError as error:
        raise SignatureError(
            f"`training_flag` sets '{name}' of a {type(owner).__name__}, which cannot be set: {error}. Make the "
            "class a dataclass."
        ) from error
    return copied
