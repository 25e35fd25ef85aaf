"""A hashable key for what a function or module computes, so that equal ones can share one trace.

Equality of the objects themselves will not do: fresh initializers are never equal, `1 == True` although they trace
differently, arrays have no single answer. The key is made of what a trace can see: code, closures, defaults, the globals
that the code names, fields of dataclasses with their types, the bytes of arrays. What it cannot look into makes a
`NoKey`, and then nothing is shared.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

#: Packages whose functions and classes are taken to be what their name says: they do not read a user's globals.
_LIBRARIES = frozenset(
    {"builtins", "collections", "functools", "itertools", "math", "operator", "typing", "abc", "dataclasses", "enum"}
    | {"jax", "jaxlib", "numpy", "scipy", "flax", "haiku", "equinox", "optax", "einops", "chex", "ml_dtypes", "keras"}
)


#: A function that closes over more is not shared: its bytes would be read for the key, and the cache would keep them alive.
LARGEST_ARRAY_BYTES = 2**20

#: Objects met so far: id -> (number, the object).
_Seen = dict[int, tuple[int, Any]]


class NoKey(Exception):
    """An object that a key cannot be made of."""


def canonical_key(value: Any) -> Hashable | None:
    """Returns a key that is equal for two values only if they trace alike; None if none can be made."""
    try:
        return _key(value, {})
    except NoKey:
        return None


def _key(value: Any, seen: _Seen) -> Hashable:
    if isinstance(value, str | bytes | types.NoneType | types.EllipsisType):
        return value
    if isinstance(value, bool | int | float | complex | enum.Enum | np.generic):
        return type(value), repr(value)
    if isinstance(value, np.dtype | types.ModuleType):
        return _Same(value)
    if isinstance(value, jax.tree_util.PyTreeDef):
        return value, str(value)  # the text tells 1 from True
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        return _array_key(value)
    # Whatever may hold itself: the second time it is named by its number. Kept alive, or its id could be another's.
    if id(value) in seen:
        return "again", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    return _composite_key(value, seen)


def _composite_key(value: Any, seen: _Seen) -> Hashable:
    if isinstance(value, tuple | list):
        return type(value), tuple(_key(item, seen) for item in value)
    if isinstance(value, Mapping):
        return type(value), tuple((_key(k, seen), _key(v, seen)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(_key(item, seen) for item in value)
    if isinstance(value, functools.partial):
        return "partial", _key(value.func, seen), _key(value.args, seen), _key(value.keywords, seen)
    if isinstance(value, types.FunctionType):
        return _Same(value) if _is_library(value) and not value.__closure__ else _function_key(value, seen)
    if isinstance(value, types.MethodType):
        return "method", _key(value.__func__, seen), _key(value.__self__, seen)
    if isinstance(value, type):
        return _Same(value) if _is_library(value) else ("class", _Same(value), tuple(_class_keys(value, seen)))
    if dataclasses.is_dataclass(value):
        return _dataclass_key(value, seen)
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType | np.ufunc) or _is_library(type(value)):
        return _library_object_key(value, seen)
    raise NoKey(type(value))


def _function_key(function: types.FunctionType, seen: _Seen) -> Hashable:
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    return (
        "function",
        function.__code__,
        _key(tuple(cells), seen),
        _key(function.__defaults__, seen),
        _key(function.__kwdefaults__, seen),
        tuple((name, _key(value, seen)) for name, value in sorted(named.items())),
    )


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:  # not filled yet
        raise NoKey(cell) from error


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the global names that code, and the code inside it, may read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _class_keys(cls: type, seen: _Seen) -> Iterator[Hashable]:
    """Yields keys of what the methods of a user's class, and of its bases, read."""
    for base in cls.__mro__:
        if _is_library(base):
            continue
        for name, member in sorted(vars(base).items()):
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, types.FunctionType):
                yield name, _function_key(function, seen)


def _dataclass_key(value: Any, seen: _Seen) -> Hashable:
    # A flax module's `parent` says where it hangs, not what it computes.
    fields = [field.name for field in dataclasses.fields(value) if field.name != "parent"]
    return (
        _key(type(value), seen),
        tuple((name, _key(getattr(value, name, None), seen)) for name in fields),
    )


def _library_object_key(value: Any, seen: _Seen) -> Hashable:
    """jit, custom_jvp and other wrappers are told apart by identity, and by what the function inside reads."""
    wrapped = getattr(value, "__wrapped__", None)
    return _Same(value), None if wrapped is None else _key(wrapped, seen)


def _is_library(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _array_key(array: Any) -> Hashable:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.size * array.dtype.itemsize > LARGEST_ARRAY_BYTES:
        raise NoKey(array.shape)
    host = np.ascontiguousarray(array)
    if host.dtype.hasobject:
        raise NoKey(host.dtype)
    weak = getattr(array, "weak_type", False)
    return type(array), weak, host.dtype.str, host.shape, hashlib.blake2b(host.tobytes(), digest_size=16).digest()


class _Same:
    """Equal only to itself around the very same object, which it keeps alive."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
