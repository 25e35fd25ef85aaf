"""A hashable key for what a function or module computes, so that equal ones can share one trace.

Equality of the objects themselves will not do: fresh initializers are never equal, `1 == True` although they trace
differently, arrays have no single answer. The key is made of what a trace can see: code, closures, defaults, the globals
that the code names with what it reads of modules, fields and attributes of objects with their types, the bytes of arrays.
Whatever is not known to be looked into as a whole makes a `NoKey`, and then nothing is shared: a program that is shared
wrongly computes with somebody else's numbers.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import hashlib
import logging
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxbridge.core.code_reads import reads_of

#: Packages whose functions and classes are taken to be what their name says: they do not read a user's globals.
_LIBRARIES = frozenset(
    {"builtins", "collections", "functools", "itertools", "math", "operator", "typing", "types", "abc", "dataclasses"}
    | {"enum", "logging", "warnings", "contextlib", "copy", "absl", "typing_extensions", "jaxtyping", "beartype"}
    | {"jax", "jaxlib", "numpy", "scipy", "flax", "haiku", "equinox", "optax", "einops", "chex", "ml_dtypes"}
)

#: A module whose functions give something else at every call.
_DRAWS = "numpy.random"

#: Built-in functions by which code reaches what it does not name.
_REACHES_OUT = frozenset({"globals", "locals", "vars", "eval", "exec", "open", "input", "__import__", "compile"})

#: What a class has that says nothing of what its objects compute.
_OF_CLASSES = frozenset(
    {"__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__hash__", "__orig_bases__", "__parameters__"}
    | {"__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl", "__type_params__"}
    | {"__annotate__", "__annotate_func__", "__annotations_cache__", "__classdictcell__", "__signature__"}
)

#: A function that closes over more is not shared: its bytes would be read for the key, and the cache would keep them alive.
LARGEST_ARRAY_BYTES = 2**20

#: More objects than this are not looked into.
_LARGEST_KEY = 10_000

#: The flag of classes that are no extension types, whose objects have more than their attributes (CPython's
#: Py_TPFLAGS_HEAPTYPE).
_WRITTEN_IN_PYTHON = 1 << 9

#: Objects met so far: id -> (number, the object).
_Seen = dict[int, tuple[int, Any]]

_MISSING = object()


class NoKey(Exception):
    """An object that a key cannot be made of."""


def canonical_key(value: Any) -> Hashable | None:
    """Returns a key that is equal for two values only if they trace alike; None if none can be made."""
    try:
        return _key(value, {})
    except NoKey:
        return None


def _key(value: Any, seen: _Seen) -> Hashable:
    kind = type(value)
    if kind in (str, bytes, types.NoneType, types.EllipsisType):
        return value
    if kind in (bool, int, float, complex, range, slice) or isinstance(value, np.generic):
        return kind, repr(value)
    if isinstance(value, np.dtype):
        return "dtype", repr(value)
    if isinstance(value, types.ModuleType):
        return _module_key(value)
    if kind is np.ndarray or (isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)):
        return _array_key(value)
    # Whatever may hold itself: the second time it is named by its number. Kept alive, or its id could be another's.
    if id(value) in seen:
        return "again", seen[id(value)][0]
    if len(seen) >= _LARGEST_KEY:
        raise NoKey("too large")
    seen[id(value)] = len(seen), value
    return _composite_key(value, kind, seen)


def _composite_key(value: Any, kind: type, seen: _Seen) -> Hashable:
    if isinstance(value, enum.Enum):
        attributes = {name: one for name, one in vars(value).items() if name not in ("__objclass__", "_sort_order_")}
        return _Same(value), _key(attributes, seen)
    if kind in (tuple, list) or _is_namedtuple(value):
        return _key(kind, seen), tuple([_key(item, seen) for item in value])
    if kind in (dict, collections.OrderedDict, types.MappingProxyType) or _is_library_mapping(value):
        return kind, tuple([(_key(k, seen), _key(v, seen)) for k, v in value.items()])
    if kind in (set, frozenset):
        return kind, frozenset([_key(item, seen) for item in value])
    if kind in (functools.partial, jax.tree_util.Partial) and not vars(value):
        return kind, _key(value.func, seen), _key(value.args, seen), _key(value.keywords, seen)
    if isinstance(value, types.FunctionType):
        return _function_key(value, seen)
    if isinstance(value, types.MethodType):
        return "method", _key(value.__func__, seen), _key(value.__self__, seen)
    if isinstance(value, type):
        return _Same(value) if _is_library(value) else ("class", _Same(value), tuple(_class_keys(value, seen)))
    if isinstance(value, jax.tree_util.PyTreeDef):
        return value, str(value), tuple(_node_keys(value, seen))  # the text tells 1 from True
    if dataclasses.is_dataclass(value):
        return _dataclass_key(value, seen)
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return _builtin_key(value, seen)
    if _is_library(kind):
        return _library_object_key(value, kind, seen)
    raise NoKey(kind)


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields") and not getattr(value, "__dict__", None)


def _is_library_mapping(value: Any) -> bool:
    """Returns whether a value is a mapping of a library, such as flax's FrozenDict; some of Python's have more in them."""
    return (
        isinstance(value, Mapping)
        and _is_library(type(value))
        and type(value).__module__ not in ("builtins", "collections")
    )


def _module_key(module: types.ModuleType) -> Hashable:
    _check_module(module.__name__)
    return _Same(module)


def _check_module(name: str) -> None:
    """Raises a NoKey unless all that can be had of a module of this name is what its name says."""
    if not _in_libraries(name) or name == _DRAWS:
        raise NoKey(name)


def _in_libraries(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES


def _function_key(function: types.FunctionType, seen: _Seen) -> Hashable:
    of_library = _in_libraries(function.__globals__.get("__name__", ""))
    if of_library and not function.__closure__:
        return _Same(function)
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    named: tuple[Hashable, ...] = ()
    if not of_library:
        reads = reads_of(function.__code__)
        for name in reads.imports:
            _check_module(name)
        named = tuple([(chain, _read_key(chain, function.__globals__, seen)) for chain in reads.chains])
    return (
        "function",
        function.__code__,
        _key(tuple(cells), seen),
        _key(function.__defaults__, seen),
        _key(function.__kwdefaults__, seen),
        _key({name: value for name, value in vars(function).items() if name != "__signature__"}, seen),
        named,
    )


def _read_key(chain: tuple[str, ...], names: Mapping[str, Any], seen: _Seen) -> Hashable:
    """Returns the key of what code reads by a global name and the attributes behind it."""
    value = names.get(chain[0], _MISSING)
    if value is _MISSING:
        if chain[0] in _REACHES_OUT or not hasattr(builtins, chain[0]):
            raise NoKey(chain)
        return None
    for attribute in chain[1:]:
        if not isinstance(value, types.ModuleType):
            break  # what else has attributes is looked into as a whole
        if value.__name__ == _DRAWS:
            raise NoKey(chain)
        value = getattr(value, attribute, _MISSING)
        if value is _MISSING:
            raise NoKey(chain)
    return _key(value, seen)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:  # not filled yet
        raise NoKey(cell) from error


def _class_keys(cls: type, seen: _Seen) -> Iterator[Hashable]:
    """Yields keys of all that a user's class, its bases and its metaclass have."""
    if not _is_library(type(cls)):
        yield _key(type(cls), seen)
    for base in cls.__mro__:
        if _is_library(base):
            continue
        yield _Same(base)
        for name, member in sorted(vars(base).items()):
            if name not in _OF_CLASSES and not _is_made_by_dataclass(base, name, member):
                yield name, _member_key(member, seen)
        for field in vars(base).get("__dataclass_fields__", {}).values():
            if field.default_factory is not dataclasses.MISSING:
                yield field.name, _key(field.default_factory, seen)


def _is_made_by_dataclass(cls: type, name: str, member: Any) -> bool:
    """Returns whether a method was written by `dataclasses`: the fields say all of it."""
    if "__dataclass_params__" not in vars(cls) or not name.startswith("__"):
        return False
    return isinstance(member, types.FunctionType) and (
        member.__code__.co_filename == "<string>" or member.__globals__.get("__name__") == "dataclasses"
    )


def _member_key(member: Any, seen: _Seen) -> Hashable:
    if isinstance(member, staticmethod | classmethod):
        return type(member), _key(member.__func__, seen)
    if isinstance(member, property):
        return property, tuple([_key(one, seen) for one in (member.fget, member.fset, member.fdel)])
    if isinstance(member, functools.cached_property):
        return functools.cached_property, _key(member.func, seen)
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType | types.WrapperDescriptorType):
        return None
    return _key(member, seen)


def _dataclass_key(value: Any, seen: _Seen) -> Hashable:
    """Returns the key of a dataclass' fields, and of whatever else was set on it.

    A module of a library keeps notes of its own there, which begin with an underscore; a flax module's `parent` says where
    it hangs, not what it computes; if it is bound, `scope` has its variables.
    """
    of_library = any(_is_library(base) for base in type(value).__mro__ if base is not object)
    names = [field.name for field in dataclasses.fields(value)]
    others = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if of_library:
        if getattr(value, "scope", None) is not None and "scope" in others:
            raise NoKey("bound")
        names = [name for name in names if name != "parent"]
        others = [name for name in others if not name.startswith("_") and name != "parent"]
    return (
        _key(type(value), seen),
        tuple([(name, _key(getattr(value, name, None), seen)) for name in [*names, *sorted(others)]]),
    )


def _node_keys(treedef: Any, seen: _Seen) -> Iterator[Hashable]:
    """Yields keys of the classes of a pytree's nodes and of what they hold beside their children."""
    data = treedef.node_data()
    if data is not None and data[0] not in (tuple, list, dict, types.NoneType):
        yield _key(data[0], seen), _key(data[1], seen)
    for child in treedef.children():
        yield from _node_keys(child, seen)


def _builtin_key(value: Any, seen: _Seen) -> Hashable:
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        if (value.__module__ or "").startswith(_DRAWS):
            raise NoKey(value)
        return _Same(value)
    return value.__name__, _key(owner, seen)


def _library_object_key(value: Any, kind: type, seen: _Seen) -> Hashable:
    """Returns the key of an object that is neither a function nor a class, of a library's class.

    It is told by what it holds; a wrapper around a function by its identity too, since not all of its options show.
    """
    if isinstance(value, np.ufunc | logging.Logger) or kind is object:
        return _Same(value)
    if kind.__module__ in ("typing", "types"):
        return kind, repr(value)
    if isinstance(value, jax.sharding.Sharding | jax.sharding.Mesh | jax.sharding.PartitionSpec | jax.Device):
        return kind, value
    if hasattr(value, "__wrapped__"):  # jit, custom_jvp and their like, also those that are written in C
        rules = [getattr(value, name, None) for name in ("__wrapped__", "jvp", "fwd", "bwd")]
        return _Same(value), tuple([_key(rule, seen) for rule in rules])
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if name.isidentifier()]
    shows_all = all(base is object or base.__flags__ & _WRITTEN_IN_PYTHON for base in kind.__mro__)
    if not shows_all or (not hasattr(value, "__dict__") and not slots):
        raise NoKey(kind)
    held: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    held.update({name: getattr(value, name) for name in slots if hasattr(value, name) and not name.startswith("__")})
    return _Same(kind), _key(held, seen)


def _is_library(value: Any) -> bool:
    return _in_libraries(getattr(value, "__module__", None) or "")


def _array_key(array: Any) -> Hashable:
    dtype = repr(array.dtype)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.size * array.dtype.itemsize > LARGEST_ARRAY_BYTES:
        raise NoKey(array.shape)
    host = np.ascontiguousarray(array)
    if host.dtype.hasobject:
        raise NoKey(host.dtype)
    weak = getattr(array, "weak_type", False)
    kind = np.ndarray if isinstance(array, np.ndarray) else jax.Array
    return kind, weak, dtype, host.shape, hashlib.blake2b(host.tobytes(), digest_size=16).digest()


class _Same:
    """Equal only to itself around the very same object, which it keeps alive."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
