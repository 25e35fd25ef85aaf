"""A model, or its bridge layers, as functions of `jax.export` beside a SavedModel's graph, for `load_jax`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import keras

from jaxbridge import backends
from jaxbridge.core.records import gathering
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import ExportError
from jaxbridge.export import artifact_files
from jaxbridge.export.artifact_files import Artifact
from jaxbridge.export.endpoint import Endpoint, parts_of
from jaxbridge.layers.alone import layer_function
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.runtime import variable_struct


@dataclasses.dataclass(frozen=True)
class JaxFunction:
    """A part of a model that JAX can trace.

    Attributes:
        layer: the path of the layer; "" for the whole model.
        fn: `fn(variables, inputs) -> (outputs, changed)`: lists of arrays; a dict of the variables that change, by number.
        variables: the variables.
        inputs: shapes and dtypes of the inputs.
    """

    layer: str
    fn: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, dict[int, Any]]]
    variables: Sequence[keras.Variable]
    inputs: Signature


def make(function: JaxFunction, endpoint: Endpoint, platforms: Sequence[str]) -> Artifact:
    """Returns a part of a model as an artifact.

    Raises:
        ExportError: `jax.export` cannot write it.
    """
    numbers = {id(variable): number for number, variable in enumerate(endpoint.variables)}
    trained = {id(variable) for variable in endpoint.model.trainable_variables}
    paths = [variable.path for variable in function.variables]

    def run(params: dict[str, Any], state: dict[str, Any], inputs: list[Any]) -> tuple[Any, dict[str, Any]]:
        outputs, changed = function.fn([params[p] if p in params else state[p] for p in paths], inputs)
        after = {paths[number]: value for number, value in changed.items()}
        return outputs, {path: after.get(path, value) for path, value in state.items()}

    structs = {path: variable_struct(variable) for path, variable in zip(paths, function.variables, strict=True)}
    params = {p: s for (p, s), v in zip(structs.items(), function.variables, strict=True) if id(v) in trained}
    state = {path: struct for path, struct in structs.items() if path not in params}
    with gathering() as found:
        serialized, has_vjp = _serialized(jax.jit(run), (params, state, function.inputs.structs()), platforms)
    number_of = {v.path: numbers[id(v)] for v in function.variables}
    return Artifact(
        function.layer,
        {path: number_of[path] for path in params},
        {path: number_of[path] for path in state},
        tuple(found),
        has_vjp,
        serialized,
    )


def _serialized(jitted: Any, arguments: Any, platforms: Sequence[str]) -> tuple[bytes, bool]:
    try:
        exported = jax.export.export(jitted, platforms=tuple(platforms))(*arguments)
    except Exception as error:  # whatever JAX says of effects, types or platforms
        raise ExportError(f"The model cannot be written for JAX: {type(error).__name__}: {error}") from error
    try:
        return bytes(exported.serialize(vjp_order=1)), True
    except Exception:  # no derivative for the unknown sizes, or none at all: the graph's gradient says which
        return bytes(exported.serialize()), False


def write_artifacts(endpoint: Endpoint, directory: Path, platforms: Sequence[str]) -> tuple[str, ...]:
    """Writes a model for JAX below its SavedModel, and returns the paths of its parts ("" for a whole model).

    What JAX cannot have is left out, with a warning.
    """
    try:
        made = [make(function, endpoint, platforms) for function in _functions(endpoint)]
    except ExportError as error:
        warnings.warn(f"{error}\nThe SavedModel is complete, but `jaxbridge.load_jax` cannot load it.", stacklevel=4)
        return ()
    artifact_files.write(made, directory)
    return tuple(artifact.layer for artifact in made)


def _functions(endpoint: Endpoint) -> list[JaxFunction]:
    if backends.current().traces_with_jax:
        return [JaxFunction("", endpoint.call, endpoint.variables, endpoint.signature)]
    layers = [part for part in parts_of(endpoint.model) if isinstance(part, BridgeLayer) and part.sharding_record]
    return [JaxFunction(str(layer.path), *layer_function(layer, endpoint.training)) for layer in layers]
