"""Bridge layers that follow each other, lifted and called as one function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge.backends.base import PureFunction
from jaxbridge.core.programs import PROGRAMS, Program
from jaxbridge.core.pure_model import CallInputs, WithLosses
from jaxbridge.core.records import recorded
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import SignatureError, StructureError
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.calling import InputStructure, cast_floats, split_inputs
from jaxbridge.layers.runtime import LiftedFunctions, SeenInputs, cast_struct, without_losses
from jaxbridge.layers.structures import known_to_keras


@dataclasses.dataclass(frozen=True)
class Link:
    """One layer's part in a chain. Nothing in it holds the layer's variables.

    Attributes:
        structure: the structure of inputs that the layer was built for.
        program: its pure function for them, which equal layers share.
        other: returns its pure function for another structure (outputs of the layer before may follow the mode).
        input_dtype: what Keras casts floating inputs of the layer to; None where it casts nothing.
    """

    structure: InputStructure
    program: Program
    other: Callable[[InputStructure], PureFunction]
    input_dtype: str | None

    def __call__(self, params: list[Any], state: list[Any], seeds: Any, inputs: Any) -> tuple[Any, list[Any]]:
        structure, leaves = split_inputs(CallInputs((cast_floats(inputs, self.input_dtype),)))
        # Under its own jit a function that occurs many times is traced, differentiated and lowered once.
        fn = self.program.jitted if structure == self.structure else jax.jit(self.other(structure))
        return fn(params, state, seeds, leaves)


def chained_function(first: Program, links: Sequence[Link]) -> PureFunction:
    """Returns pure functions, one after the other, as one.

    Args:
        first: the first function.
        links: those that follow; each takes the outputs of the one before.

    Returns:
        A function like those, of which params, state, seeds and new state are lists with an entry per function. Its
        outputs are a `WithLosses`, whose losses are a list with an entry per function (None: it has none).
    """

    def run(params: list[Any], state: list[Any], seeds: list[Any], leaves: list[Any]) -> tuple[Any, list[Any]]:
        outputs, new = first.jitted(params[0], state[0], seeds[0], leaves)
        found = [(outputs, new)]
        for index, link in enumerate(links, 1):
            found.append(link(params[index], state[index], seeds[index], _values(found[-1][0])))
        losses = [outs.losses if isinstance(outs, WithLosses) else None for outs, _ in found]
        return WithLosses(_values(found[-1][0]), losses), [new for _, new in found]

    return run


def _values(outputs: Any) -> Any:
    return known_to_keras(without_losses(outputs))


class Chain:
    """Built bridge layers that follow each other.

    Args:
        layers: at least two layers, each of which `may_follow` the first.
    """

    def __init__(self, layers: Sequence[BridgeLayer]):
        self._layers = tuple(layers)
        self._runtimes = [layer._runtime for layer in layers]
        self._lifted = LiftedFunctions(self._runtimes[0].backend, self._runtimes[0].platforms)
        # What Keras casts floating inputs and params of each of the layers to.
        self._input_dtype = layers[0].compute_dtype if layers[0].autocast else None
        self._traceable: dict[Any, bool] = {}

    def __call__(self, inputs: Any, training: bool) -> Any:
        """Returns what the layers give when they are called one after the other; their state, draws and losses go on."""
        runtimes = self._runtimes
        seen, arrays = runtimes[0].see(CallInputs((inputs,)), None)
        if not self._is_traceable(seen, training):
            return one_by_one(self._layers, inputs)
        trees = [(runtime.params, runtime.state) for runtime in runtimes]
        params = [params.values() for params, _ in trees]
        state = [state.values() for _, state in trees]
        seeds = [layer._seeds(training) for layer in self._layers]
        lifted = self._lifted.get(
            seen,
            training,
            (params, state, seeds),
            lambda: (self._program(seen.structure, training), runtimes[0].signature(seen)),
        )
        with recorded(*(layer.sharding_record for layer in self._layers)):
            result, new_state = lifted(params, state, seeds, arrays, [params.trained() for params, _ in trees])
        for layer, losses in zip(self._layers, result.losses, strict=True):
            layer._add_losses(losses)
        for (_, tree), new in zip(trees, new_state, strict=True):
            tree.assign(new)
        return result.outputs

    def _program(self, structure: InputStructure, training: bool) -> Program:
        first, *others = self._runtimes
        program = first.program(structure, training)
        links = []
        for runtime in others:
            assert runtime.declared is not None
            declared = runtime.declared[0]
            links.append(
                Link(declared, runtime.program(declared, training), runtime.pure_function(training), self._input_dtype)
            )
        programs = (program, *(link.program for link in links))
        key = ("chain", programs, self._input_dtype) if all(p.is_shared for p in programs) else None
        chained = PROGRAMS.get(key)
        chained.offer(self, chained_function(program, links))
        return chained

    def _is_traceable(self, seen: SeenInputs, training: bool) -> bool:
        """Returns whether the layers can be traced as one for unknown sizes.

        A size that follows from an unknown one is an expression here, and an unknown one of its own where layers are called
        one by one; some functions take only the latter.
        """
        key = seen, training
        if key not in self._traceable:
            first = self._runtimes[0]
            signature = first.signature(seen)
            self._traceable[key] = (
                first.backend.concrete_shapes or not signature.symbols() or self._traces(seen, training, signature)
            )
        return self._traceable[key]

    def _traces(self, seen: SeenInputs, training: bool, signature: Signature) -> bool:
        structs = [runtime.variable_structs() for runtime in self._runtimes]
        params = [[cast_struct(struct, self._input_dtype) for struct in params] for params, _ in structs]
        state = [state for _, state in structs]
        seeds = [
            jax.ShapeDtypeStruct((2,), np.uint32) if runtime.model.streams(training) else None
            for runtime in self._runtimes
        ]
        try:
            jax.eval_shape(self._program(seen.structure, training).fn, params, state, seeds, signature.structs())
        except (SignatureError, StructureError):  # nothing that other sizes would mend
            raise
        except Exception:  # whatever a function raises at symbolic sizes; a layer raises its own by itself
            return False
        return True


def one_by_one(layers: Sequence[Any], inputs: Any) -> Any:
    """Returns what layers give that are called one after the other; Keras finds their mask and training flag."""
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def may_be_chained(layer: Any) -> bool:
    """Returns whether a layer does nothing at a call but what `BridgeLayer.call` does."""
    return (
        isinstance(layer, BridgeLayer)
        and type(layer).__call__ is BridgeLayer.__call__
        and type(layer).call is BridgeLayer.call
        and type(layer).compute_mask is BridgeLayer.compute_mask
        and layer.compute_output_shape_fn is None
        and layer.activity_regularizer is None
        and not isinstance(layer.dtype_policy, keras.dtype_policies.DTypePolicyMap)
    )


def may_follow(first: BridgeLayer, layer: BridgeLayer) -> bool:
    """Returns whether a layer can be chained behind `first`: nothing is declared of its inputs, and it computes alike."""
    runtime = layer._runtime
    return (
        runtime.polymorphic_shapes is None
        and not runtime.constraints
        and runtime.platforms == first._runtime.platforms
        and layer.dtype_policy == first.dtype_policy
        and layer.autocast == first.autocast
    )
