"""A layer or model as a pure JAX function with abstract arguments."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge.core.pure_model import WithLosses
from jaxbridge.core.tree_paths import leaf_paths
from jaxbridge.distribution.abstract import abstract_variables
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.calling import cast_floats, pure_function
from jaxbridge.layers.runtime import variable_struct
from jaxbridge.stages.abstract import AbstractInputs
from jaxbridge.stages.placement import input_sharding, variable_sharding

#: What a call returns: the outputs, the losses, and by path the variables that change.
Result = tuple[Any, list[Any], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Program:
    """One way to call a layer.

    Attributes:
        name: the layer's name.
        call: the call, a pure function of the variables by path and the inputs.
        variables: shape, dtype and sharding of each variable by its path; the state of the seed is one of them, if the
            call draws.
        trainable: the paths of the variables that are trained.
        parameters: how many numbers the weights hold.
        inputs: the inputs, of ShapeDtypeStructs.
        has_unknown_sizes: whether a size of an input is no number.
    """

    name: str
    call: Callable[[dict[str, Any], Any], Result]
    variables: dict[str, jax.ShapeDtypeStruct]
    trainable: frozenset[str]
    parameters: int
    inputs: Any
    has_unknown_sizes: bool

    def cotangents(self) -> list[Any]:
        """Returns the floating outputs without their values."""
        return _floats(jax.eval_shape(self.call, self.variables, self.inputs)[0])

    def call_with_gradient(
        self, variables: dict[str, Any], inputs: Any, cotangents: list[Any]
    ) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]]:
        """Returns what the call returns, and by path the gradients with respect to the trained variables.

        Args:
            variables: the variables by path.
            inputs: the inputs.
            cotangents: of the floating outputs, in their order. Those of losses are 1.
        """

        def differentiated(trained: dict[str, Any]) -> tuple[Any, Result]:
            result = self.call({**variables, **trained}, inputs)
            return (_floats(result[0]), result[1]), result

        trained = {path: variables[path] for path in sorted(self.trainable)}
        (_, losses), backward, result = jax.vjp(differentiated, trained, has_aux=True)
        (gradients,) = backward((cotangents, [jnp.ones_like(loss) for loss in losses]))
        return *result, gradients


def _floats(outputs: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def bridge_program(layer: BridgeLayer, inputs: AbstractInputs, training: bool, has_values: bool) -> Program:
    """Returns the call of a bridge layer, on any Keras backend; the layer need not be built, and is not built by it.

    Args:
        layer: the layer.
        inputs: what it is called with.
        training: whether in training mode.
        has_values: whether its variables have values, if it is built.

    Raises:
        ShapeError: a size breaks a shape that the layer declares.
    """
    runtime = layer._runtime
    tensors = inputs.keras_tensors()
    seen = layer._see(*tensors.args, **tensors.kwargs)
    signature = runtime.signature(seen)
    structs = inputs.structs
    if not inputs.has_unknown_sizes:
        signature.check(seen.shapes)
    elif signature.declared:
        structs = signature.structs()  # what the layer knows of its unknown sizes
    params, state, model = runtime.params, runtime.state, runtime.model
    if params is None or state is None:
        has_values = False
        start = layer._placed_initialization(seen)
        model = start.model
        with abstract_variables(), keras.name_scope(layer.name, caller=layer):
            params, state = layer._trees(start, False)
            layer._create(params, state, start)
    rebuilds, placement = (params.rebuild, state.rebuild), runtime.partitioning.placement
    pure = pure_function(model, seen.structure, *rebuilds, training, layer._output_dtype(), placement)
    read_dtype = layer.compute_dtype if layer.autocast else None
    params_paths, state_paths = ([variable.path for variable in tree.variables] for tree in (params, state))
    seeds, seeds_structure = _seeds(layer) if model.streams(training) else ({}, jax.tree.structure(None))

    def call(variables: dict[str, Any], arrays: Any) -> Result:
        outputs, after = pure(
            cast_floats([variables[path] for path in params_paths], read_dtype),
            [variables[path] for path in state_paths],
            jax.tree.unflatten(seeds_structure, [variables[path] for path in seeds]),
            cast_floats(jax.tree.leaves(arrays), read_dtype),
        )
        losses: list[Any] = []
        if isinstance(outputs, WithLosses):
            outputs, losses = outputs.outputs, [jnp.sum(loss) for loss in jax.tree.leaves(outputs.losses)]
        return outputs, losses, {path: new for path, new in zip(state_paths, after, strict=True) if new is not None}

    variables = [*params.variables, *state.variables]
    return Program(
        layer.name,
        call,
        _variable_structs(zip(_paths(variables), variables, strict=True), has_values) | seeds,
        frozenset(variable.path for variable in params.variables if variable.trainable),
        sum(math.prod(variable.shape) for variable in variables),
        inputs.only_arrays(_laid_out(structs)),
        inputs.has_unknown_sizes,
    )


def keras_program(layer: keras.layers.Layer, inputs: AbstractInputs, training: bool, has_values: bool) -> Program:
    """Returns the call of any built Keras layer or model, where JAX traces it.

    Args:
        layer: the layer; its variables need no values.
        inputs: what it is called with.
        training: whether in training mode.
        has_values: whether its variables have values.
    """
    variables = [*layer.trainable_variables, *layer.non_trainable_variables]
    paths = _paths(variables)
    by_path = dict(zip(paths, variables, strict=True))
    # As Keras' own steps do: a `call` without the argument is not given it.
    mode = {"training": training} if "training" in inspect.signature(layer.call).parameters else {}

    def call(values: dict[str, Any], arrays: Any) -> Result:
        mapping = [(by_path[path], value) for path, value in values.items()]
        # Not `stateless_call`, which leaves out what `__call__` does: casts, masks, layouts.
        with keras.StatelessScope(mapping, collect_losses=True, initialize_variables=False) as scope:
            before = {path: scope.get_current_value(variable) for path, variable in by_path.items()}
            given = inputs.rebuild(jax.tree.leaves(arrays))
            outputs = layer(*given.args, **given.kwargs, **mode)
            after = {path: scope.get_current_value(variable) for path, variable in by_path.items()}
        return outputs, list(scope.losses), {path: new for path, new in after.items() if new is not before[path]}

    return Program(
        layer.name,
        call,
        _variable_structs(by_path.items(), has_values),
        frozenset(path for path, variable in by_path.items() if variable.trainable),
        layer.count_params(),
        inputs.only_arrays(_laid_out(inputs.structs)),
        inputs.has_unknown_sizes,
    )


def _paths(variables: list[keras.Variable]) -> list[str]:
    """Returns the variables' paths, a number added to those that come again: Keras' seeds may share one."""
    found: list[str] = []
    for variable in variables:
        path, number = variable.path, 0
        while path in found:
            number += 1
            path = f"{variable.path}_{number}"
        found.append(path)
    return found


def _variable_structs(
    variables: Iterable[tuple[str, keras.Variable]], have_values: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        path: variable_struct(variable).update(sharding=variable_sharding(variable, have_values))
        for path, variable in variables
    }


def _laid_out(structs: Iterable[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=input_sharding(s)) for s in structs]


def _seeds(layer: BridgeLayer) -> tuple[dict[str, jax.ShapeDtypeStruct], Any]:
    """Returns the seeds that a call draws, by path, and their structure."""
    drawn: Any = np.zeros(2)
    if layer.seed_generator is not None:
        with keras.StatelessScope(initialize_variables=False):  # nothing is drawn: the scope keeps the counter's update
            drawn = layer._get_call_rng(True)
    leaves, structure = jax.tree.flatten(drawn)
    paths = leaf_paths(jax.tree.unflatten(structure, range(len(leaves))), f"{layer.name}/seed_generator")
    return {path: jax.ShapeDtypeStruct((2,), jnp.uint32) for path in paths}, structure
