"""The first values of params and state: their shapes at once, the values themselves only when they are needed."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge.core import prng
from jaxbridge.core.compilation import compiled_for_one_run
from jaxbridge.core.constraints import NOWHERE, Placement
from jaxbridge.core.programs import PROGRAMS
from jaxbridge.core.pure_model import PureModel
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import ShapeError, SignatureError, StructureError
from jaxbridge.layers.calling import InputStructure
from jaxbridge.layers.variables import PartitionedTree

Parts = tuple[PartitionedTree, PartitionedTree]


class Initialization:
    """Params and state of a model before its first call.

    Args:
        model: the model.
        given: params and state that the user brings, or (None, None) to initialise them.
        structure: structure of the inputs.
        signature: shapes and dtypes of the inputs.
        shapes: sizes that were seen; used where all are known, since a state may follow the batch size.
        seeds: a pytree of seeds of shape [2] for `model.init`.
        key: equal for models that compute the same; None if that cannot be told.
        placement: the mesh that specs without a mesh refer to inside the model.

    Attributes:
        parts: params and state, of abstract arrays.
        model: the model with its random streams known.
    """

    def __init__(
        self,
        model: PureModel,
        given: tuple[Any, Any],
        structure: InputStructure,
        signature: Signature,
        shapes: Sequence[tuple[int | None, ...]],
        seeds: Any,
        key: Hashable | None,
        placement: Placement = NOWHERE,
    ):
        self._model = model
        self._placement = placement
        self._structure = structure
        # Equal layers share the trace of `model.init` and its compilation.
        self._program = PROGRAMS.get(None if key is None else ("init", key, structure, placement))
        self._seeds = seeds
        self._values: tuple[list[Any], list[Any]] | None = None
        self._prepared: tuple[Any, tuple[Any, list[Any]]] | None = None
        if given == (None, None) and model.init is not None:
            self._sizes, self.parts = self._program.once(
                ("sizes", signature, tuple(shapes), jax.tree.structure(seeds)),
                lambda: self._find_sizes(signature, shapes),
            )
        else:
            self._sizes = None
            params, state = (PartitionedTree(jax.tree.map(_from_backend, tree)) for tree in given)
            self._values = params.arrays, state.arrays
            self.parts = _abstract(params), _abstract(state)
        self.model = self._resolved(signature)

    def values(self, layouts: tuple[list[Any], list[Any]] | None = None) -> tuple[list[Any], list[Any]]:
        """Returns the values of params and state, each a list in the order of their leaves.

        Args:
            layouts: shardings that initialised values are made in (so that none is ever whole on one device), or None for
                each; given values are left where they are.
        """
        if self._values is not None:
            return self._values
        run, arguments = self._prepared or self._compiled(layouts)
        # Keras may ask while a step is being traced, and again after it: the values must not be tracers.
        with jax.ensure_compile_time_eval():
            values = run(*arguments)
        self._values = values
        return values

    def prepare(self, layouts: tuple[list[Any], list[Any]]) -> None:
        """Compiles what `values` will run.

        To be called outside of `jax.ensure_compile_time_eval`, in which JAX would run what depends on no argument while it
        traces: a compilation for each op.
        """
        if self._values is None:
            self._prepared = self._compiled(layouts)

    def _compiled(self, layouts: tuple[list[Any], list[Any]] | None) -> tuple[Any, tuple[Any, list[Any]]]:
        """Returns the compiled function that makes the values, and its arguments."""
        assert self._sizes is not None

        def initialize(seeds: Any, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
            params, state = self._init(seeds, leaves)
            return params.arrays, state.arrays

        arguments = self._seeds, [np.ones(struct.shape, struct.dtype) for struct in self._sizes.structs()]
        sharded = layouts if layouts is not None and any(map(any, layouts)) else None
        seeds, treedef = jax.tree.flatten(jax.tree.map(jax.typeof, self._seeds))
        key = ("values", self._sizes, treedef, tuple(seeds), sharded and tuple(map(tuple, sharded)))
        return self._program.once(key, lambda: compiled_for_one_run(initialize, arguments, sharded)), arguments

    def own_value(self, part: int, index: int, layouts: tuple[list[Any], list[Any]]) -> Any:
        """Returns one value of params (part 0) or state (part 1) for a variable to hold: a given one as a copy.

        Keras' training step donates the variables' buffers on JAX; the user goes on using what was given.
        """
        value = self.values(layouts)[part][index]
        return value if self._sizes is not None else _copied(value)

    def forget(self) -> None:
        """Lets go of initialised values, which the variables hold by now; they can be made again."""
        if self._sizes is not None:
            self._values = self._prepared = None

    def _init(self, seeds: Any, leaves: list[Any]) -> Parts:
        assert self._model.init is not None
        with self._placement.scope():
            params, state = self._model.init(prng.keys_from_seeds(seeds), self._structure.rebuild(leaves), True)
        return _as_arrays(params), _as_arrays(state)

    def _find_sizes(self, signature: Signature, shapes: Sequence[tuple[int | None, ...]]) -> tuple[Signature, Parts]:
        """Returns sizes at which the model can be initialised, and what there is to initialise."""
        found: list[PartitionedTree] = []

        def structs_of(seeds: Any, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
            found[:] = self._init(seeds, leaves)
            return found[0].arrays, found[1].arrays

        # A size is a symbol while Keras traces a model around the layer.
        seen = [tuple(size for size in shape if isinstance(size, int)) for shape in shapes]
        is_known = [len(known) for known in seen] == [len(shape) for shape in shapes]
        failures: list[Exception] = []
        for sizes in [signature.at_known_sizes(seen)] if is_known else signature.trials():
            try:
                params, state = jax.eval_shape(structs_of, self._seeds, sizes.structs())
            except (SignatureError, StructureError):  # nothing that other sizes would mend
                raise
            except Exception as error:  # whatever the user's function raises at sizes that do not suit it
                if _is_missing_argument(error):
                    raise self._missing_inputs(error) from error
                failures.append(error)
            else:
                return sizes, (found[0].with_arrays(params), found[1].with_arrays(state))
        if not failures:
            raise ShapeError(
                f"No sizes were found for inputs of shapes {', '.join(signature.shapes)} that fulfil the constraints "
                f"{', '.join(signature.constraints)}. Give the sizes with `keras.Input`."
            )
        if len(failures) > 1:
            failures[0].add_note(
                f"So, or likewise, for every size that was tried for the unknown ones of {', '.join(signature.shapes)}. If the "
                "function needs certain sizes, call the layer once on real data, or give them with `keras.Input`."
            )
        raise failures[0]

    def _missing_inputs(self, error: Exception) -> SignatureError:
        given = self._structure.rebuild(range(sum(self._structure.is_array))).args
        listed = len(given) == 1 and isinstance(given[0], list | tuple)
        how = (
            "The list of inputs is one argument: write `layer(a, b)` where you wrote `layer([a, b])`."
            if listed
            else "Pass every input to the layer, by position or by name: `layer(a, b)`."
        )
        return SignatureError(f"The function or module was called without all of its inputs: {error}. {how}")

    def _resolved(self, signature: Signature) -> PureModel:
        if self._model.resolve is None:
            return self._model
        resolve = self._model.resolve
        sizes = self._sizes or next(signature.trials())

        def resolved() -> PureModel:
            params, state = (part.rebuild(part.arrays) for part in self.parts)
            with self._placement.scope():
                return resolve(params, state, self._structure.rebuild(sizes.structs()))

        # Under given params of other shapes the answer may be another.
        return self._program.once(("resolved", sizes), resolved) if self._sizes is not None else resolved()


def _as_arrays(tree: Any) -> PartitionedTree:
    parts = PartitionedTree(tree)
    return parts.with_arrays([jnp.asarray(array) for array in parts.arrays])


def _abstract(parts: PartitionedTree) -> PartitionedTree:
    return parts.with_arrays(jax.eval_shape(lambda *arrays: list(arrays), *parts.arrays))


def _is_missing_argument(error: Exception) -> bool:
    """Returns whether this is Python's error for a call that lacks arguments, which other sizes do not mend."""
    return isinstance(error, TypeError) and bool(re.search(r"missing \d+ required .*argument", str(error)))


def _copied(value: Any) -> Any:
    """Returns a copy of an array where the array is: on the host, or in its own shards. Numbers are returned as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, jax.Array):
        return value
    with jax.ensure_compile_time_eval():
        return jnp.copy(value)


def _from_backend(leaf: Any) -> Any:
    """Returns a tensor of the Keras backend as an array that JAX takes; other leaves as they are."""
    return keras.ops.convert_to_numpy(leaf) if keras.ops.is_tensor(leaf) and not isinstance(leaf, jax.Array) else leaf
