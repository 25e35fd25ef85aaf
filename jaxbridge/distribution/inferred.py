"""Shardings that nobody wrote down: read off arrays, or chosen by the compiler."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import keras

from jaxbridge import backends
from jaxbridge.distribution import _keras_private


@dataclasses.dataclass(frozen=True)
class CompiledShardings:
    """The `jax.sharding.Sharding`s that a compiled call of a layer has.

    Attributes:
        variables: of the variables, by path.
        inputs: of the inputs, a pytree like the tuple of them.
        outputs: of the outputs, a pytree like them.
    """

    variables: dict[str, Any]
    inputs: Any
    outputs: Any


def compiled_shardings(layer: keras.layers.Layer, *inputs: Any, training: bool = False) -> CompiledShardings:
    """Compiles a call of a layer or model and returns the shardings that the compiler settled on; nothing is run.

    Variables with a layout keep it, inputs that are committed to devices (`jax.device_put`, results of `jit`,
    `jax.make_array_from_process_local_data`) keep their sharding. What says nothing (variables without a layout,
    `jax.ShapeDtypeStruct`s, arrays of numpy) is left to the compiler, which propagates the shardings of the others.

    Args:
        layer: a built layer or model.
        *inputs: the positional inputs, pytrees of arrays or `jax.ShapeDtypeStruct`s.
        training: the mode.

    Raises:
        UnsupportedBackendError: not on the JAX backend.
        ValueError: the layer is not built.
    """
    if not layer.built:
        raise ValueError(f"Layer '{layer.name}' is not built, so it has no variables yet. Call it once, or build it.")
    trainable, rest = layer.trainable_variables, layer.non_trainable_variables

    def call(trainable_values: Any, rest_values: Any, inputs: Any) -> Any:
        return layer.stateless_call(trainable_values, rest_values, *inputs, training=training)[0]

    values = [list(map(_as_argument, group)) for group in (trainable, rest)]
    arguments, outputs = backends.current().compiled_shardings(call, (*values, inputs))
    found = zip([*trainable, *rest], [*arguments[0], *arguments[1]], strict=True)
    return CompiledShardings({variable.path: sharding for variable, sharding in found}, arguments[2], outputs)


def _as_argument(variable: keras.Variable) -> Any:
    """Returns a variable's value where it has a layout, else what says only shape and dtype."""
    has_layout = _keras_private.assigned_layout(variable) is not None
    return variable.value if has_layout else jax.ShapeDtypeStruct(variable.shape, variable.dtype)
