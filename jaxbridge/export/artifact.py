"""A model, or its bridge layers, as functions of `jax.export` beside a SavedModel's graph, for `load_jax`."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.core.records import Record, from_json, gathering, to_json
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import ExportError
from jaxbridge.export.endpoint import Endpoint, parts_of
from jaxbridge.layers.alone import layer_function
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.runtime import variable_struct

#: Below `assets.extra` of a SavedModel, which servers leave to their users.
_FOLDER = Path("assets.extra", "jaxbridge")
_INDEX = "artifacts.json"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A function `(params, state, inputs) -> (outputs, new state)` of dicts of arrays by path and a flat list of arrays.

    Attributes:
        layer: the path of the layer; "" for the whole model.
        params: the paths of the trainable variables, and the number of each among the SavedModel's variables.
        state: the same for the other variables.
        records: what the layers in it say of sharding.
        has_vjp: whether it can be differentiated.
        serialized: what `jax.export` wrote.
    """

    layer: str
    params: dict[str, int]
    state: dict[str, int]
    records: tuple[Record, ...]
    has_vjp: bool
    serialized: bytes


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


def write(artifacts: Sequence[Artifact], directory: Path) -> None:
    """Writes artifacts below a SavedModel's directory."""
    folder = directory / _FOLDER
    folder.mkdir(parents=True)
    index = []
    for number, artifact in enumerate(artifacts):
        file = f"{number}.jaxexport"
        (folder / file).write_bytes(artifact.serialized)
        facts = {field: getattr(artifact, field) for field in ("layer", "params", "state", "has_vjp")}
        index.append({**facts, "file": file, "records": json.loads(to_json(artifact.records))})
    (folder / _INDEX).write_text(json.dumps({"format": 1, "artifacts": index}, indent=1), encoding="utf-8")


def write_artifacts(endpoint: Endpoint, directory: Path, platforms: Sequence[str]) -> tuple[str, ...]:
    """Writes a model for JAX below its SavedModel, and returns the paths of its parts ("" for a whole model).

    What JAX cannot have is left out, with a warning.
    """
    try:
        made = [make(function, endpoint, platforms) for function in _functions(endpoint)]
    except ExportError as error:
        warnings.warn(f"{error}\nThe SavedModel is complete, but `jaxbridge.load_jax` cannot load it.", stacklevel=4)
        return ()
    write(made, directory)
    return tuple(artifact.layer for artifact in made)


def _functions(endpoint: Endpoint) -> list[JaxFunction]:
    if backends.current().traces_with_jax:
        return [JaxFunction("", endpoint.call, endpoint.variables, endpoint.signature)]
    layers = [part for part in parts_of(endpoint.model) if isinstance(part, BridgeLayer) and part.sharding_record]
    return [JaxFunction(str(layer.path), *layer_function(layer, endpoint.training)) for layer in layers]


def read(directory: Path) -> list[Artifact]:
    """Returns the artifacts of a SavedModel; none if it has none."""
    folder = directory / _FOLDER
    if not (folder / _INDEX).exists():
        return []
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["artifacts"]
    return [
        Artifact(
            facts["layer"],
            facts["params"],
            facts["state"],
            tuple(from_json(json.dumps(facts["records"]))),
            facts["has_vjp"],
            (folder / facts["file"]).read_bytes(),
        )
        for facts in index
    ]


def values(artifact: Artifact, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the values of params and state of an artifact, from the SavedModel's checkpoint."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
    value = lambda number: reader.get_tensor(f"model_variables/{number}/.ATTRIBUTES/VARIABLE_VALUE")
    read_all = lambda numbers: {path: value(number) for path, number in numbers.items()}
    return read_all(artifact.params), read_all(artifact.state)
