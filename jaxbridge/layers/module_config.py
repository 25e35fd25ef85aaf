"""Modules in a layer's config: what JSON has words for, classes and functions by name, arrays by shape and dtype."""

from __future__ import annotations

import enum
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import adapters
from jaxbridge.errors import JaxBridgeError, StructureError

#: Public namespaces in which a library's functions are looked up, since `__module__` is a private one.
_NAMESPACES = (
    "jax",
    "jax.nn",
    "jax.nn.initializers",
    "jax.numpy",
    "jax.lax",
    "jax.random",
    "flax.linen",
    "flax.nnx",
    "haiku",
    "haiku.initializers",
    "haiku.nets",
    "equinox",
    "equinox.nn",
    "numpy",
)

#: The key of a packed value that is not itself; no dict that is packed has it, as dicts are packed as pairs.
_KIND = "jaxbridge"


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
    if isinstance(value, functools.partial):
        parts = (value.func, tuple(value.args), dict(value.keywords))
        return _packed("partial", items=[pack(part, where) for part in parts])
    if (
        isinstance(value, np.dtype)
        or (isinstance(value, type) and issubclass(value, np.generic))
        or _is_scalar_type(value)
    ):
        return _packed("dtype", name=np.dtype(value).name)
    if hasattr(value, "get_config") and not isinstance(value, type):
        return _packed("keras", config=keras.saving.serialize_keras_object(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        raise StructureError(f"{where} is an array, which a config cannot hold. Make it a variable of the module.")
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return _pack_name(value, where)
    return _pack_module(value, where)


def unpack(packed: Any) -> Any:
    """Returns the value that `pack` wrote."""
    if isinstance(packed, list):
        return [unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if _KIND not in packed:  # a config that Keras wrote, such as those of keras.layers.FlaxLayer
        return keras.saving.deserialize_keras_object(packed)
    return _UNPACKERS[packed[_KIND]](packed)


def _packed(kind: str, **parts: Any) -> dict[str, Any]:
    return {_KIND: kind, **parts}


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
        place = f"{where}.{name}"
        is_array = isinstance(field, np.ndarray | jax.Array)
        items[name] = _pack_array(field) if is_array else pack(field, place)
    return _packed("module", library=adapter.library, type=_pack_name(cls, where), fields=items)


def _pack_array(array: Any) -> dict[str, Any]:
    impl = str(jax.random.key_impl(array)) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else None
    words = array if impl is None else jax.random.key_data(array)
    return _packed("array", shape=list(words.shape), dtype=np.dtype(words.dtype).name, impl=impl)


def _unpack_array(packed: dict[str, Any]) -> Any:
    """Returns zeros, NaN where they are floats: weights are loaded in their place."""
    dtype = jax.numpy.dtype(packed["dtype"])
    fill = np.nan if jax.numpy.issubdtype(dtype, np.inexact) else 0
    array = jax.numpy.full(tuple(packed["shape"]), fill, dtype)
    return array if packed["impl"] is None else jax.random.wrap_key_data(array, impl=packed["impl"])


def _unpack_module(packed: dict[str, Any]) -> Any:
    cls = _unpack_name(packed["type"])
    adapter = adapters.load(packed["library"])
    # Nothing but a class of the library is ever called because a file says so.
    if not adapters.belongs(cls, adapter.library):
        raise StructureError(f"The file names {cls!r} as a module of {adapter.library}, which it is not.")
    return adapter.reconstruct(cls, {name: unpack(field) for name, field in packed["fields"].items()})


def _pack_name(value: Any, where: str) -> dict[str, Any]:
    """Returns where a class or function is found again."""
    for namespace in _NAMESPACES:
        name = getattr(value, "__name__", "")
        if getattr(sys.modules.get(namespace), name, None) is value:
            return _packed("name", module=namespace, name=name, registered=None)
    module, name = value.__module__, value.__qualname__
    registered = keras.saving.get_registered_name(value)
    is_registered = registered in keras.saving.get_custom_objects()
    if not is_registered and "<" in name:
        raise StructureError(
            f"{where} is `{name}`, which has no name at the top level of a module, so that a file cannot say which it is. "
            "Move it there, or register it with `keras.saving.register_keras_serializable`."
        )
    return _packed("name", module=module, name=name, registered=registered if is_registered else None)


def _unpack_name(packed: dict[str, Any]) -> Any:
    module, name, registered = packed["module"], packed["name"], packed["registered"]
    for key in filter(None, (registered, name)):
        # `keras.saving.get_custom_objects()` has not what `load_model(custom_objects=)` was given.
        custom = keras.saving.get_registered_object(key)
        if custom is not None:
            return custom
    if module in _NAMESPACES:
        return getattr(importlib.import_module(module), name)
    # A file never makes Python import code that was not imported anyway, and names nothing of the standard library.
    found: Any = None if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"} else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise StructureError(
            f"The file names `{name}` of the module '{module}', which is not imported. Import it before you load the file, "
            f"or pass `custom_objects={{'{name}': ...}}`."
        )
    return found


def _unpack_partial(fn: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    return functools.partial(fn, *args, **words)


def _is_scalar_type(value: Any) -> bool:
    """Returns whether a value is `jnp.float32` or one of its kind, which are no classes."""
    return getattr(jax.numpy, getattr(value, "__name__", ""), None) is value and hasattr(value, "dtype")


_UNPACKERS = {
    "enum": lambda packed: _unpack_name(packed["type"])[packed["name"]],
    "dict": lambda packed: {unpack(key): unpack(value) for key, value in packed["items"]},
    "tuple": lambda packed: tuple(map(unpack, packed["items"])),
    "partial": lambda packed: _unpack_partial(*map(unpack, packed["items"])),
    "dtype": lambda packed: jax.numpy.dtype(packed["name"]),
    "keras": lambda packed: keras.saving.deserialize_keras_object(packed["config"]),
    "array": _unpack_array,
    "module": _unpack_module,
    "name": _unpack_name,
}
