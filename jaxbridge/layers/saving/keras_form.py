"""Objects and tensors as Keras writes them: what of them a config may hold, checked before Keras makes anything."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from jaxbridge.errors import StructureError
from jaxbridge.layers.saving.allowed import KERAS_CLASSES
from jaxbridge.layers.saving.names import Names, custom_object
from jaxbridge.layers.saving.parts import (
    Parts,
    bytes_of,
    check_depth,
    check_keys,
    dtype_of,
    of_type,
    placeholder,
    shape_of,
)
from jaxbridge.layers.saving.places import namespace

_TENSOR = "__keras_tensor__"

#: What Keras writes for values that are no objects of a class, and hold no names.
_VALUES = ("__bytes__", "__slice__", "__ellipsis__")


def check(config: Any, where: str, names: Names, depth: int = 0) -> None:
    """Checks what Keras would make of a part of a config.

    Raises:
        StructureError: it names something that is neither registered with Keras nor a value of its own.
    """
    check_depth(depth, where)
    if isinstance(config, list | tuple):
        for index, item in enumerate(config):
            check(item, f"{where}[{index}]", names, depth + 1)
    if not isinstance(config, dict):
        return
    check_keys(config, where)
    if "class_name" in config and "config" in config:
        _check_object(config, where, names, depth)
    for name, value in config.items():
        check(value, f"{where}.{name:.80}", names, depth + 1)


def _check_object(config: dict[str, Any], where: str, names: Names, depth: int) -> None:
    parts = Parts(config, where, depth)
    name = parts.text("class_name")
    if name == _TENSOR:
        _check_tensor(config, where, names)
    elif name in ("__tensor__", "__numpy__"):
        dtype_of(parts.get("config", dict).get("dtype"), where)
    elif name in ("__lambda__", "__typespec__"):
        if names.is_safe:
            what = "the code of a lambda" if name == "__lambda__" else "a TypeSpec"
            raise StructureError(
                f"{where}: the file holds {what}, which is not run in Keras' safe mode. Write a function with a name instead; "
                "if you trust the file, load it with `safe_mode=False`."
            )
    elif name not in _VALUES and names.is_safe:
        _check_class(parts, name)


def _check_class(parts: Parts, name: str) -> None:
    config, module = parts.packed, parts.optional_text("module") or ""
    if name == "function":
        name = parts.text("config")
        registered = name
        is_keras = module == "builtins"  # Keras looks among its activations, losses and the like
    else:
        registered = parts.optional_text("registered_name") or name
        classes = KERAS_CLASSES.get(module, frozenset())
        is_keras = (classes is None or name in classes) and isinstance(_of_keras(module, name), type)
    if custom_object(registered) is None and not is_keras:
        raise StructureError(
            f"{parts.where}: the file names `{name}` of '{module}', which is neither registered with Keras nor one of its "
            "initializers, regularizers, constraints or dtype policies. If you know what it does and want it, load the file "
            f"with `custom_objects={{{registered!r:.80}: {module}.{config['class_name'] if name == 'function' else name}}}`."
        )


def _of_keras(module: str, name: str) -> Any:
    return namespace(module).get(name) if module in KERAS_CLASSES else None


def class_of(config: Any) -> type | None:
    """Returns the class of an object that Keras wrote and that was checked."""
    parts = Parts(config, "", 0)
    name, module = parts.text("class_name"), parts.optional_text("module") or ""
    found = custom_object(parts.optional_text("registered_name") or name) or _of_keras(module, name)
    return found if isinstance(found, type) else None


def made(config: Any, where: str) -> Any:
    """Returns what Keras makes of a config that was checked."""
    try:
        return keras.saving.deserialize_keras_object(config)
    except (TypeError, AttributeError, KeyError) as error:
        raise StructureError(f"{where}: Keras cannot make what the file describes: {error}") from error


def _check_tensor(config: dict[str, Any], where: str, names: Names) -> tuple[tuple[int | None, ...], np.dtype[Any]]:
    inner = of_type(config["config"], (dict,), where)
    shape = shape_of(inner.get("shape"), where, unknown=True)
    dtype = dtype_of(inner.get("dtype"), where)
    names.take(bytes_of(shape, dtype), where)
    return shape, dtype


def tensors(config: Any, where: str, names: Names, depth: int = 0) -> Any:
    """Returns a pytree (lists, dicts, plain values) with the KerasTensors that a config describes; it holds no other objects.

    Raises:
        StructureError: it describes something else, or more than this machine can hold.
    """
    check_depth(depth, where)
    if isinstance(config, list | tuple):
        return [tensors(item, f"{where}[{index}]", names, depth + 1) for index, item in enumerate(config)]
    if not isinstance(config, dict):
        return of_type(config, (type(None), bool, int, float, str), where)
    check_keys(config, where)
    if "class_name" not in config or "config" not in config:
        return {name: tensors(value, f"{where}['{name:.80}']", names, depth + 1) for name, value in config.items()}
    if config["class_name"] == "__bytes__":
        return Parts(of_type(config["config"], (dict,), where), where, depth).text("value").encode()
    if config["class_name"] != _TENSOR:
        raise StructureError(f"{where}: the file describes a {config['class_name']!r:.80} where an array must be.")
    shape, dtype = _check_tensor(config, where, names)
    return keras.KerasTensor(shape, dtype.name)


def array_of(tensor: Any) -> np.ndarray:
    """Returns an array in the place of a KerasTensor; NaN until weights are loaded into it."""
    if None in tensor.shape:
        raise StructureError(f"The file is damaged: {tensor.shape} is not the shape of a variable.")
    return placeholder(tuple(tensor.shape), np.dtype(dtype_of(tensor.dtype, "A variable in the file")))
