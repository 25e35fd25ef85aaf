"""From the arguments of a Keras call to a pure function over flat lists of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbridge.core import prng
from jaxbridge.core.constraints import NOWHERE, Placement
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.tree_paths import is_array, leaf_difference, leaf_paths
from jaxbridge.errors import SignatureError, StructureError
from jaxbridge.layers.variables import key_words


@dataclasses.dataclass(frozen=True)
class InputStructure:
    """What is known of the inputs of a call besides the arrays: hashable, so that functions can be kept by it.

    Attributes:
        treedef: structure of the `CallInputs`.
        static: the leaves that are no arrays (flags, numbers, names), None where an array is.
        is_array: which leaves are arrays.
    """

    treedef: Any
    static: tuple[Any, ...]
    is_array: tuple[bool, ...]

    def rebuild(self, arrays: Sequence[Any]) -> CallInputs:
        values = iter(arrays)
        leaves = [next(values) if array else static for array, static in zip(self.is_array, self.static, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)

    def without_mask(self) -> InputStructure:
        """Returns the structure of the same inputs without a mask."""
        inputs = self.rebuild([np.zeros(())] * sum(self.is_array))
        return split_inputs(dataclasses.replace(inputs, mask=None))[0]

    def mask_arrays(self) -> int:
        """Returns how many of the arrays belong to the mask; they are the last ones."""
        return len(jax.tree.leaves(self.rebuild(range(sum(self.is_array))).mask))


def split_inputs(inputs: CallInputs) -> tuple[InputStructure, list[Any]]:
    """Returns the structure of the inputs of a call and its arrays.

    Raises:
        SignatureError: an input is neither an array nor a value that can be fixed in the function.
    """
    leaves, treedef = jax.tree.flatten(inputs)
    is_array = tuple(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
    static = tuple(None if array else leaf for array, leaf in zip(is_array, leaves, strict=True))
    for leaf in static:
        if leaf is not None and not isinstance(leaf, bool | int | float | complex | str | bytes):
            raise SignatureError(
                f"An input of a layer must be a tensor, a number, a bool or a string, got {leaf!r} of type "
                f"{type(leaf).__name__}."
            )
    structure = InputStructure(treedef, static, is_array)
    return structure, [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]


def pure_function(
    model: PureModel,
    structure: InputStructure,
    rebuild_params: Callable[[Any], Any],
    rebuild_state: Callable[[Any], Any],
    training: bool,
    output_dtype: str | None,
    placement: Placement = NOWHERE,
) -> Callable[[list[Any], list[Any], Any, list[Any]], tuple[Any, list[Any]]]:
    """Returns the function that a layer lifts: `(params, state, seeds, inputs) -> (outputs, new_state)`.

    The lists hold arrays; `seeds` is a pytree of seed states, or None. In `new_state` None stands for a leaf that did not
    change, so that inference writes no variable. It raises a StructureError while it is traced, so
    before one variable is written, if the state comes back in another structure, shape or dtype, or an output is no
    array. Floating outputs are cast to `output_dtype` (None: left as they are). `placement` constrains how everything that
    goes in and out is split over devices.
    """

    def run(params: list[Any], state: list[Any], seeds: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
        params = placement.variables_constrained(params, placement.params)
        before = rebuild_state(placement.variables_constrained(state, placement.state))
        inputs = placement.inputs_constrained(structure.rebuild(leaves))
        outputs, after = model.apply(rebuild_params(params), before, prng.keys_from_seeds(seeds), inputs, training)
        new_state = placement.variables_constrained(_checked_state(before, after), placement.state)
        if isinstance(outputs, WithLosses):
            return WithLosses(finished(outputs.outputs), _checked_outputs(outputs.losses)), new_state
        return finished(outputs), new_state

    def finished(outputs: Any) -> Any:
        return placement.outputs_constrained(cast_floats(_checked_outputs(outputs), output_dtype))

    def run_in_scope(*args: Any) -> tuple[Any, list[Any]]:
        with placement.scope(args):
            return run(*args)

    return run_in_scope if placement.axes else run


def _checked_outputs(outputs: Any) -> Any:
    for path, leaf in zip(leaf_paths(outputs), jax.tree.leaves(outputs), strict=True):
        is_value = isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)
        if not is_value:
            where = f"The output '{path}'" if path else "The output"
            raise StructureError(
                f"{where} is a {type(leaf).__name__}. Outputs must be arrays, or dicts, lists or tuples of arrays."
            )
    return jax.tree.map(jnp.asarray, outputs)


def cast_floats(outputs: Any, dtype: str | None) -> Any:
    """Returns a pytree of arrays with its floating ones in this dtype (None: as they are)."""
    if dtype is None:
        return outputs
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, outputs)


def _checked_state(before: Any, after: Any) -> list[Any]:
    """Returns the leaves of the new state, None where one is the very array that was given."""
    difference = leaf_difference(before, after)
    if difference is not None:
        raise StructureError(
            f"The state that the call returned differs from the state it was given: {difference}. Return every leaf with "
            "the structure, shape and dtype it had (`new.astype(old.dtype)`); nothing was written."
        )
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return [None if new is old else key_words(new) for old, new in pairs if is_array(old)]
