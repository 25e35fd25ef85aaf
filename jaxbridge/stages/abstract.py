"""Layers and inputs without values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import adapters
from jaxbridge.core.arguments import Kind
from jaxbridge.core.shapes import make_signature
from jaxbridge.distribution.abstract import abstract_variables
from jaxbridge.errors import JaxBridgeError, LoweringError
from jaxbridge.layers.base import BridgeLayer

#: What `lower` and `summary` take.
LAYER = Kind(
    "a Keras layer or model, or a function without arguments that makes one",
    lambda value: isinstance(value, keras.layers.Layer) or callable(value) or _is_module(value),
)


@dataclasses.dataclass(frozen=True)
class Target:
    """A layer and how it is called.

    Attributes:
        layer: the layer or model; built, unless it is a bridge layer.
        inputs: what it is called with.
        has_values: whether its variables have values.
    """

    layer: keras.layers.Layer
    inputs: AbstractInputs
    has_values: bool


def find_target(given: Any, inputs: Any) -> Target:
    """Returns a layer that can be traced: `given` itself, or one that is made of it without values.

    Args:
        given: a layer or model, which is left as it is; or a function without arguments that makes one.
        inputs: as `lower` takes them; `Arguments`; or a function that finds them for the layer.

    Raises:
        LoweringError: the function makes no layer, or an unbuilt layer has no config that it could be made anew from.
    """
    if isinstance(given, keras.layers.Layer):
        if isinstance(given, BridgeLayer) or given.built:
            return Target(given, _arguments(given, inputs), True)
        make: Callable[[], Any] = lambda: _anew(given)
    elif callable(given) and not _is_module(given):
        make = given
    else:
        raise LoweringError(
            f"Only a Keras layer or model, or a function without arguments that makes one, can be lowered; got {given!r} "
            f"of type {type(given).__name__}.{_remedy(given)}"
        )
    with abstract_variables():
        layer = make()
        if not isinstance(layer, keras.layers.Layer):
            raise LoweringError(
                f"{given!r} must return a Keras layer or model, and returned {layer!r}.{_remedy(layer)}"
            )
        arguments = _arguments(layer, inputs)
        if not isinstance(layer, BridgeLayer) and not layer.built:
            tensors = arguments.keras_tensors()
            layer(*tensors.args, **tensors.kwargs)
    return Target(layer, arguments, False)


def _is_module(value: Any) -> bool:
    """Returns whether a value is a module, or a class of modules: instances of most are callable."""
    if inspect.isroutine(value) or type(value) is tuple:  # functions have an adapter too
        return False
    try:
        adapters.find_adapter(value)
    except JaxBridgeError:
        return False
    return True


def _remedy(value: Any) -> str:
    """Returns what to write for a module that is no layer yet; "" for anything else."""
    if not _is_module(value):
        return ""
    name = (value if isinstance(value, type) else type(value)).__name__
    layer = "FlaxLayer" if adapters.belongs(value, "flax") else "ModuleLayer"
    return f" It is a module: wrap it in a layer, `lambda: jaxbridge.{layer}({name}(...))`."


def _arguments(layer: keras.layers.Layer, inputs: Any) -> AbstractInputs:
    """Returns the arguments of a call: a tuple is several, except for a model with declared inputs, whose call has one."""
    if callable(inputs):
        inputs = inputs(layer)
    if isinstance(inputs, Arguments):
        return AbstractInputs.of(inputs)
    if type(inputs) is not tuple:
        return AbstractInputs.of(Arguments((inputs,)))
    declared = _declared(layer)
    if declared is not None:
        leaves = keras.tree.flatten(inputs)
        fits = len(leaves) == len(keras.tree.flatten(declared))
        inputs = (keras.tree.pack_sequence_as(declared, leaves) if fits else inputs,)
    return AbstractInputs.of(Arguments(inputs))


def declared_inputs(
    batch_size: int, otherwise: str = "Pass `inputs`, such as `inputs=keras.KerasTensor((8, 28, 28, 1))`."
) -> Callable[[keras.layers.Layer], Arguments]:
    """Returns a function that finds the inputs that a model declares.

    Args:
        batch_size: the size of axis 0 where the model leaves it open.
        otherwise: what to do where the model declares none.
    """

    def sized(tensor: keras.KerasTensor) -> keras.KerasTensor:
        shape = tuple(tensor.shape)
        return keras.KerasTensor((batch_size, *shape[1:]) if shape and shape[0] is None else shape, tensor.dtype)

    def find(model: keras.layers.Layer) -> Arguments:
        declared = _declared(model)
        if declared is None:
            raise LoweringError(f"Nothing says what '{model.name}' is called with. {otherwise}")
        return Arguments((keras.tree.map_structure(sized, declared),))

    return find


def _declared(layer: keras.layers.Layer) -> Any:
    """Returns the inputs that a functional or sequential model declares, in their structure; None for other layers."""
    if not (isinstance(layer, keras.Model) and getattr(layer, "inputs", None)):
        return None
    try:
        return layer.input
    except (AttributeError, ValueError):  # a Sequential model that was not called yet
        return layer.inputs[0]


def _anew(layer: keras.layers.Layer) -> keras.layers.Layer:
    try:
        return type(layer).from_config(layer.get_config())
    except Exception as error:  # whatever a user's class raises
        raise LoweringError(
            f"'{layer.name}' is not built, and cannot be made anew from its config to be built without values: "
            f"{type(error).__name__}: {error}\nCall it once on data, or pass the function that makes it: "
            f"`jaxbridge.lower(lambda: {type(layer).__name__}(...), inputs)`."
        ) from error


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a call: what `lower` takes as `inputs` once it is known which of them are positional."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class AbstractInputs:
    """The arguments of a call without values.

    Attributes:
        structs: shape, dtype and sharding of every array: a tensor, an array, a KerasTensor or a ShapeDtypeStruct.
        treedef: the structure of the arguments.
        static: the leaves that are no arrays (flags, numbers, names), None where an array is.
        is_array: which leaves are arrays.
    """

    structs: tuple[jax.ShapeDtypeStruct, ...]
    treedef: Any
    static: tuple[Any, ...]
    is_array: tuple[bool, ...]

    @classmethod
    def of(cls, arguments: Arguments) -> AbstractInputs:
        """Returns arguments without their values.

        Unknown sizes (None) become symbols, axis 0 the same one everywhere; dtypes are those that JAX gives such arrays.
        """
        leaves, treedef = jax.tree.flatten((arguments.args, arguments.kwargs))
        is_array = tuple(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
        static = tuple(None if array else leaf for array, leaf in zip(is_array, leaves, strict=True))
        structs = _structs([leaf for leaf, array in zip(leaves, is_array, strict=True) if array])
        return cls(tuple(structs), treedef, static, is_array)

    def rebuild(self, arrays: Iterable[Any]) -> Arguments:
        """Returns the arguments with these in place of the arrays."""
        values = iter(arrays)
        leaves = [next(values) if array else static for array, static in zip(self.is_array, self.static, strict=True)]
        return Arguments(*jax.tree.unflatten(self.treedef, leaves))

    def only_arrays(self, structs: Iterable[jax.ShapeDtypeStruct]) -> Any:
        """Returns these in the structure of the arguments, None for what is no array; a single argument by itself."""
        values = iter(structs)
        args, kwargs = jax.tree.unflatten(self.treedef, [next(values) if array else None for array in self.is_array])
        return (args, kwargs) if kwargs else args[0] if len(args) == 1 else args

    def keras_tensors(self) -> Arguments:
        """Returns the arguments as KerasTensors, None for every size that is no number."""
        return self.rebuild(
            keras.KerasTensor([d if isinstance(d, int) else None for d in s.shape], np.dtype(s.dtype).name)
            for s in self.structs
        )

    @property
    def has_unknown_sizes(self) -> bool:
        """Whether a size is no number."""
        return any(not isinstance(size, int) for struct in self.structs for size in struct.shape)


def _structs(arrays: list[Any]) -> list[jax.ShapeDtypeStruct]:
    dtypes = tuple(map(_dtype, arrays))
    if any(None in tuple(array.shape) for array in arrays):
        shapes = tuple(tuple(d if isinstance(d, int) else None for d in array.shape) for array in arrays)
        return make_signature(shapes, dtypes).structs()
    return [
        jax.ShapeDtypeStruct(tuple(array.shape), dtype, sharding=_sharding(array))
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]


def _dtype(array: Any) -> str:
    return np.dtype(jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(array.dtype))).name


def _sharding(array: Any) -> jax.sharding.NamedSharding | None:
    """Returns how an array or struct is laid out on a mesh; None where nothing says so."""
    sharding = None if isinstance(array, jax.core.Tracer) else getattr(array, "sharding", None)
    return sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
