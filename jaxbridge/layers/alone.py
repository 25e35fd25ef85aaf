"""A built layer as one JAX function of its variables and inputs, without Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import keras

from jaxbridge.core.records import recorded
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import StructureError
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.calling import cast_floats
from jaxbridge.layers.runtime import without_losses
from jaxbridge.layers.structures import known_to_keras

#: `fn(variables, inputs) -> (outputs, changed)`: lists of arrays; a dict of the variables that change, by number.
LayerFunction = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, dict[int, Any]]]


def layer_function(layer: BridgeLayer, training: bool) -> tuple[LayerFunction, list[keras.Variable], Signature]:
    """Returns what a built layer computes, its variables (the seed's state last, if it has one), and its inputs.

    Raises:
        StructureError: the layer is not built.
    """
    runtime, generator = layer._runtime, layer.seed_generator
    if runtime.declared is None or runtime.params is None or runtime.state is None:
        raise StructureError(f"Layer '{layer.name}' is not built: call it once.")
    structure, signature = runtime.declared
    run = runtime.program(structure, training).fn
    params, state = runtime.params.variables, runtime.state.variables
    seeds = [] if generator is None else [generator.state]
    first_state, first_seed = len(params), len(params) + len(state)
    cast = layer.compute_dtype if layer.autocast else None

    def fn(values: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, dict[int, Any]]:
        read = cast_floats(list(values[:first_state]), cast)
        seed = values[first_seed].astype(jnp.uint32) if runtime.model.streams(training) else None
        with recorded(layer.sharding_record):
            outputs, after = run(read, list(values[first_state:first_seed]), seed, list(inputs))
        changed = {first_state + number: value for number, value in enumerate(after) if value is not None}
        if seed is not None:
            changed[first_seed] = values[first_seed] + jnp.array([0, 1], values[first_seed].dtype)
        return known_to_keras(without_losses(outputs)), changed

    return fn, [*params, *state, *seeds], signature
