"""Layouts for a model's variables, decided by how the model uses them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.core.dimension_flow import follow
from jaxbridge.core.dimensions import Dimensions
from jaxbridge.distribution.abstract import abstract_variables
from jaxbridge.distribution.decisions import Decision, decide
from jaxbridge.distribution.native import keras_mesh
from jaxbridge.distribution.plan import PlannedVariable, ShardingPlan
from jaxbridge.errors import JaxBridgeError, ShapeError, ShardingError

#: What stands for an unknown size while the model is looked at. Plans do not depend on it: all costs grow with it.
NOMINAL_SIZE = 16


class Autosharded(NamedTuple):
    """What `autoshard` decided.

    Attributes:
        layout_map: for `keras.distribution.ModelParallel`; it has a key per variable that is split.
        report: every variable, with its bytes per device and the reason.
    """

    layout_map: keras.distribution.LayoutMap
    report: ShardingPlan


def autoshard(
    model: keras.layers.Layer | Callable[[], keras.layers.Layer],
    mesh: keras.distribution.DeviceMesh | jax.sharding.Mesh,
    *,
    axis_name: str | None = None,
    inputs: Any = None,
    min_bytes: int = 2**16,
) -> Autosharded:
    """Decides which variables of a model are split over a mesh axis, and along which dimension.

    The model is traced, and every dimension of every variable is followed through the operations: two kernels in a row
    are split by columns and by rows, so that they need one all-reduce together; the kernels of an attention by its heads;
    embeddings by their vocabulary. Names and sizes have no part in it, and kernels may be transposed. A dimension is split
    only where that moves fewer bytes between devices than gathering what its variables read and write would. All else
    is replicated, and the report says why. Layouts never change what a model computes, only where.

    Args:
        model: a function without arguments that makes the model, which then is made without values for its variables, so
            that it need not fit into memory; or a model or layer, of native Keras layers, bridge layers or both. One that
            is not built is built by this, for `inputs`: its variables get their values, whole.
        mesh: the mesh, of Keras or JAX.
        axis_name: the mesh axis to split over; None for the last one, which in `ModelParallel` is the one that does not
            split the batch.
        inputs: an example of the model's inputs, as tensors, arrays, `keras.KerasTensor`s or `jax.ShapeDtypeStruct`s; None
            for those that the model was built for.
        min_bytes: variables of fewer bytes are not split for their own sake, only with a larger one. At least 0.

    Returns:
        The layouts and a report of them. The keys are the variables' paths, so the model that is made anew under
        `ModelParallel` needs the same names as this one.

    Raises:
        UnsupportedBackendError: Keras' backend is not JAX.
        ShardingError: `model`, `mesh` or `min_bytes` is none, the model has no variables, or the mesh has no such axis.
        ShapeError: `inputs` are needed, or the model cannot be traced with what was assumed for unknown sizes.

    Example (on the JAX backend):
        mesh = keras.distribution.DeviceMesh((2, 4), ["data", "model"])
        layout_map, report = autoshard(make_model, mesh)
        with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
            model = make_model()
    """
    backends.current().trace(tuple)  # says so where there is nothing to decide, before anything is made
    mesh = _device_mesh(mesh)
    axis_name, count = _axis_of(mesh, axis_name)
    if isinstance(min_bytes, bool) or not isinstance(min_bytes, int | np.integer) or min_bytes < 0:
        raise ShardingError(f"`min_bytes` must be a number of bytes, at least 0, got {min_bytes!r}.")
    model = _built(model, inputs)
    variables = list(model.variables)
    if not variables:
        raise ShardingError(f"'{model.name}' has no variables to lay out.")
    dims = _dimensions_of(model, variables, inputs)
    decisions = decide(dims, [_nbytes(variable) for variable in variables], count, min_bytes)
    decisions = _one_per_path(variables, decisions)
    rows = tuple(
        _planned(variable, decision, axis_name, count) for variable, decision in zip(variables, decisions, strict=True)
    )
    layout_map = keras.distribution.LayoutMap(mesh)
    for row in {row.path: row for row in rows if row.is_split}.values():
        layout_map[_key(row.path)] = row.spec
    return Autosharded(layout_map, ShardingPlan(axis_name, count, rows))


def _device_mesh(mesh: Any) -> keras.distribution.DeviceMesh:
    if isinstance(mesh, keras.distribution.DeviceMesh):
        return mesh
    if isinstance(mesh, jax.sharding.Mesh):
        return keras_mesh(mesh)
    raise ShardingError(
        f"`mesh` must be a mesh of devices, got {mesh!r}. Write `keras.distribution.DeviceMesh((2, 4), ['data', 'model'])` or "
        "`jax.make_mesh((2, 4), ('data', 'model'))`."
    )


def _built(given: Any, inputs: Any) -> keras.layers.Layer:
    """Returns a model that has its variables: `given` itself, or what it makes, without values."""
    is_layer = isinstance(given, keras.layers.Layer)
    if not is_layer and not callable(given):
        raise ShardingError(f"`model` must be a Keras model or layer, or a function that makes one, got {given!r}.")
    with contextlib.nullcontext() if is_layer else abstract_variables():
        model = given if is_layer else given()
        if not isinstance(model, keras.layers.Layer):
            raise ShardingError(f"{given!r} must return a Keras model or layer, and returned {model!r}.")
        if not (model.built and model.variables) and inputs is not None:
            model(jax.tree.map(_keras_tensor, inputs))
        elif not model.built:
            raise _unknown_inputs(model)
    return model


def _keras_tensor(leaf: Any) -> keras.KerasTensor:
    return keras.KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype))


def _unknown_inputs(model: keras.layers.Layer) -> ShapeError:
    return ShapeError(
        f"'{model.name}' does not say what its inputs are. Give an example: `autoshard(model, mesh, inputs=x)`."
    )


def _axis_of(mesh: keras.distribution.DeviceMesh, axis_name: str | None) -> tuple[str, int]:
    names = list(mesh.axis_names)
    axis_name = names[-1] if axis_name is None else axis_name
    if axis_name not in names:
        raise ShardingError(f"The mesh has no axis '{axis_name}'; it has {', '.join(names)}.")
    return axis_name, int(mesh.shape[names.index(axis_name)])


def _dimensions_of(model: Any, variables: Sequence[Any], inputs: Any) -> Dimensions:
    """Follows the dimensions of a model; parameter i is the i-th of the variables."""
    given = [*model.trainable_variables, *model.non_trainable_variables]
    places = {id(variable): index for index, variable in enumerate(variables)}
    jaxpr = _traced(model, inputs)
    dims, args = Dimensions(), []
    for variable, aval in zip(given, jaxpr.in_avals, strict=False):
        args.append(dims.param(places[id(variable)], aval))
    for aval in jaxpr.in_avals[len(given) :]:
        args.append(dims.fresh(aval, from_inputs=True))
        dims.block(args[-1].dims[:1], "it is the batch")
    for value, aval in zip(follow(dims, jaxpr.jaxpr, jaxpr.consts, args), jaxpr.out_avals, strict=True):
        dims.returned(value, aval)
    return dims


def _traced(model: Any, inputs: Any) -> Any:
    """Returns the jaxpr of a model: trainable variables, other variables, inputs -> outputs."""
    variables = [list(map(_struct, each)) for each in (model.trainable_variables, model.non_trainable_variables)]
    structs = _input_structs(model, inputs)
    try:
        return backends.current().trace(lambda *args: model.stateless_call(*args)[0], *variables, structs)
    except JaxBridgeError:
        raise
    except Exception as error:  # whatever the model raises at sizes that do not suit it
        if inputs is not None:
            raise
        raise ShapeError(
            f"'{model.name}' could not be traced with {NOMINAL_SIZE} for unknown sizes: {error}\nGive `inputs=` of sizes that "
            "it takes."
        ) from error


def _struct(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(variable.shape), jax.dtypes.canonicalize_dtype(variable.dtype))


def _input_structs(model: Any, inputs: Any) -> Any:
    if inputs is None:
        if isinstance(model, keras.Sequential):
            inputs = model.inputs[0]  # it has `input` only once it has been called
        elif not isinstance(model, keras.Model) or getattr(model, "inputs", None):
            inputs = getattr(model, "input", None)  # of a subclassed model it has no structure
        if inputs is None:
            raise _unknown_inputs(model)

    def struct(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = [NOMINAL_SIZE if size is None else size for size in leaf.shape]
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(leaf.dtype)))

    return jax.tree.map(struct, inputs)


def _one_per_path(variables: Sequence[Any], decisions: Sequence[Decision]) -> list[Decision]:
    """Replicates variables that a LayoutMap cannot tell apart, where they were to be laid out differently."""
    wanted: dict[str, set[int | None]] = {}
    for variable, decision in zip(variables, decisions, strict=True):
        wanted.setdefault(variable.path, set()).add(decision.dim)
    clash = Decision(None, "several variables have this path, and a LayoutMap cannot tell them apart")
    return [
        decision if len(wanted[variable.path]) == 1 else clash
        for variable, decision in zip(variables, decisions, strict=True)
    ]


def _planned(variable: Any, decision: Decision, axis_name: str, count: int) -> PlannedVariable:
    shape = tuple(variable.shape)
    spec = tuple(axis_name if position == decision.dim else None for position in range(len(shape)))
    size = _nbytes(variable)
    return PlannedVariable(
        variable.path, shape, spec, size, size if decision.dim is None else size // count, decision.reason
    )


def _nbytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * np.dtype(jax.numpy.dtype(_struct(variable).dtype)).itemsize


def _key(path: str) -> str:
    """Returns a key of a LayoutMap that matches this path alone: keys are regular expressions too."""
    return path if re.fullmatch(r"[\w/-]*", path) else re.escape(path)
