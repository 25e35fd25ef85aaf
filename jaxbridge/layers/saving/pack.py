"""Values as a layer's config holds them: what JSON has words for, classes and functions by name, arrays by shape and dtype."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import adapters
from jaxbridge.errors import JaxBridgeError, StructureError
from jaxbridge.layers.saving.methods import check_method
from jaxbridge.layers.saving.names import remember, written_name
from jaxbridge.layers.saving.nodes import KIND
from jaxbridge.layers.saving.parts import dtypes, is_scalar_type

_JITTED = type(jax.jit(lambda: None))


def pack(value: Any, where: str) -> Any:
    """Returns a value as JSON can hold it.

    Args:
        value: a module, a class or function, numbers, strings, dtypes, or containers of such values.
        where: how an error names it.

    Raises:
        StructureError: there is no way to write a part of it; the message names the part and says what to do.
    """
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
        return value
    if type(value) is list:
        return [pack(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        return _packed("enum", type=_pack_name(type(value), where), name=value.name)
    if isinstance(value, Mapping):
        pairs = [[pack(k, where), pack(v, f"{where}[{k!r}]")] for k, v in value.items()]
        return _packed("dict", items=pairs)
    if type(value) is tuple:
        return _packed("tuple", items=[pack(item, f"{where}[{index}]") for index, item in enumerate(value)])
    if _is_dtype(value):
        return _pack_dtype(value, where)
    if hasattr(value, "get_config") and not isinstance(value, type):
        return _packed("keras", config=keras.saving.serialize_keras_object(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        raise StructureError(
            f"{where} is an array, which a config cannot hold. Make it a variable: of the module, or one of `params`."
        )
    if callable(value) or isinstance(value, type):
        packed = _pack_callable(value, where)
        if packed is not None:
            return packed
    return _pack_module(value, where)


def pack_function(fn: Any, where: str) -> Any:
    """Returns a function that a layer was given as the config holds it.

    A function inside another, and a lambda, are written as `keras.layers.JaxLayer` writes them: only `custom_objects`, and
    `safe_mode=False`, bring them back.

    Raises:
        StructureError: there is no way to write it; the message says what to do.
    """
    inner = fn.__wrapped__ if isinstance(fn, _JITTED) else fn
    if not _is_local(inner) or _is_registered(fn):
        return pack(fn, where)
    remember(fn)
    if inner.__name__ == "<lambda>":
        return keras.saving.serialize_keras_object(inner)
    return _packed("name", module=inner.__module__, name=inner.__qualname__, registered=None)


def _packed(kind: str, **parts: Any) -> dict[str, Any]:
    return {KIND: kind, **parts}


def _pack_name(value: Any, where: str) -> dict[str, Any]:
    module, name, registered = written_name(value, where)
    return _packed("name", module=module, name=name, registered=registered)


def _pack_callable(value: Any, where: str) -> dict[str, Any] | None:
    """Returns a function, class, method or partial; None for a callable that is an object of another class."""
    if isinstance(value, functools.partial):
        parts = {"": value.func, ".args": tuple(value.args), ".keywords": dict(value.keywords)}
        return _packed("partial", items=[pack(part, f"{where}{name}") for name, part in parts.items()])
    if isinstance(value, types.MethodType) and not isinstance(value.__self__, type):
        return _pack_method(value, where)
    if isinstance(value, _JITTED):
        return _pack_jitted(value, where)
    is_named = isinstance(value, type) or hasattr(value, "__qualname__") or hasattr(value, "__name__")
    return _pack_name(value, where) if is_named else None


def _pack_jitted(value: Any, where: str) -> dict[str, Any]:
    """Returns `jax.jit(f)` under its own name, else as f: the layer compiles it anyway."""
    try:
        return _pack_name(value, where)
    except StructureError:
        inner = getattr(value, "__wrapped__", None)
        if inner is None:
            raise
        return pack(inner, where)


def _pack_method(value: Any, where: str) -> dict[str, Any]:
    check_method(type(value.__self__), value.__name__, where)
    try:
        return _packed("method", of=pack(value.__self__, f"{where}.__self__"), name=value.__name__)
    except JaxBridgeError as error:
        raise StructureError(
            f"{where} is the method `{value.__qualname__}` of an object that a file cannot hold. Give its class "
            "`get_config` and `from_config` and register it with `keras.saving.register_keras_serializable`, or write a "
            f"function at the top level of a module that calls the method. ({error})"
        ) from error


def _pack_module(value: Any, where: str) -> dict[str, Any]:
    try:
        adapter = adapters.find_adapter(value)
        cls, fields = adapter.construction(value)
    except JaxBridgeError as error:
        raise StructureError(
            f"{where}, {value!r:.100}, cannot be written to a file: {error} Values that can be are numbers, strings, "
            "dtypes, classes and functions with a name, modules, and lists, tuples and dicts of these."
        ) from error
    items = {}
    for name, field in fields.items():
        is_array = isinstance(field, np.ndarray | jax.Array)
        items[name] = _pack_array(field) if is_array else pack(field, f"{where}.{name}")
    return _packed("module", library=adapter.library, type=_pack_name(cls, where), fields=items)


def _pack_array(array: Any) -> dict[str, Any]:
    impl = str(jax.random.key_impl(array)) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else None
    words = array if impl is None else jax.random.key_data(array)
    return _packed("array", shape=list(words.shape), dtype=np.dtype(words.dtype).name, impl=impl)


def _is_dtype(value: Any) -> bool:
    is_class = isinstance(value, type) and issubclass(value, np.generic)
    return isinstance(value, np.dtype) or is_class or is_scalar_type(value)


def _pack_dtype(value: Any, where: str) -> dict[str, Any]:
    name = np.dtype(value).name
    if name not in dtypes():
        raise StructureError(f"{where} is the dtype {name}, which JAX does not have.")
    return _packed("dtype", name=name)


def _is_local(fn: Any) -> bool:
    return isinstance(fn, types.FunctionType) and "<" in fn.__qualname__


def _is_registered(fn: Any) -> bool:
    return keras.saving.get_registered_name(fn) in keras.saving.get_custom_objects()
