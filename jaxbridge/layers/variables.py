"""A pytree of Keras variables that are named by their path in the pytree."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

from jaxbridge import backends
from jaxbridge.core import prng
from jaxbridge.core.canonical import canonical_key
from jaxbridge.core.constraints import is_annotated, without_annotations
from jaxbridge.core.tree_paths import clean_paths, is_array, leaf_paths
from jaxbridge.distribution._keras_private import PlacedVariable
from jaxbridge.distribution.abstract import values_are_wanted
from jaxbridge.distribution.layouts import Decision, decide, remember
from jaxbridge.errors import LostVariablesError, StructureError


class PartitionedTree:
    """A pytree taken apart into its arrays and the rest, which is kept as it is (strings, functions, ...).

    Typed keys are kept as their key data, unsigned integers that every backend has variables for.

    Attributes:
        arrays: the arrays.
        annotations: what the pytree says of how each is split over devices, `Annotated`s without a value, or None.
    """

    def __init__(self, tree: Any):
        nodes = jax.tree.leaves(tree, is_leaf=is_annotated)
        leaves, self._treedef = jax.tree.flatten(without_annotations(tree))
        said = [dataclasses.replace(node, value=None) if is_annotated(node) else None for node in nodes]
        self.annotations = [note for note, leaf in zip(said, leaves, strict=True) if is_array(leaf)]
        self._is_array = [is_array(leaf) for leaf in leaves]
        self._rest = [None if is_array(leaf) else leaf for leaf in leaves]
        self._impls = [prng.key_impl(leaf) if prng.is_typed_key(leaf) else None for leaf in leaves]
        self.arrays = [key_words(leaf) for leaf in leaves if is_array(leaf)]

    def with_arrays(self, arrays: list[Any]) -> PartitionedTree:
        """Returns a copy that holds other arrays."""
        copied = copy.copy(self)
        copied.arrays = list(arrays)
        return copied

    def rebuild(self, arrays: Any) -> Any:
        """Returns the pytree with these in place of its arrays."""
        values = iter(arrays)
        leaves = [
            _typed(next(values), impl) if array else rest
            for array, rest, impl in zip(self._is_array, self._rest, self._impls, strict=True)
        ]
        return jax.tree.unflatten(self._treedef, leaves)

    def key(self) -> Hashable | None:
        """Returns a key that is equal for pytrees that differ in their arrays only; None if there is none."""
        rest = canonical_key(self._rest)
        return None if rest is None else (self._treedef, rest, tuple(self._impls))

    def paths(self, prefix: str) -> list[str]:
        """Returns the path of every array."""
        numbered = jax.tree.unflatten(self._treedef, range(len(self._is_array)))
        return [path for path, array in zip(leaf_paths(numbered, prefix), self._is_array, strict=True) if array]


def key_words(leaf: Any) -> Any:
    """Returns typed keys (also abstract ones) as their key data; other leaves as they are."""
    if not prng.is_typed_key(leaf):
        return leaf
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) else jax.eval_shape(jax.random.key_data, leaf)


def _typed(array: Any, impl: Any) -> Any:
    """Returns key data as typed keys; what is no array of JAX (a Keras variable) stays as it is."""
    if impl is None or not isinstance(array, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
        return array
    wrap = lambda words: jax.random.wrap_key_data(words, impl=impl)
    return jax.eval_shape(wrap, array) if isinstance(array, jax.ShapeDtypeStruct) else wrap(jnp.asarray(array))


class VariableTree:
    """Keras variables in the structure of a pytree: their paths and layouts at once, they themselves by `create`.

    Args:
        parts: the pytree, of abstract arrays.
        prefix: the scope above the paths: "params", or "" where the top level of the pytree already says it.
        parent: the path of the layer.
        annotations: by original path, how the module wants its arrays to be sharded.

    Attributes:
        original_paths: the paths in the pytree, below the layer.
        paths: the same, as Keras takes them.
        decisions: per variable, how it is laid out under the distribution in effect.

    Raises:
        ShardingError: a layout does not fit its array or the mesh.
    """

    def __init__(
        self,
        parts: PartitionedTree,
        *,
        prefix: str,
        parent: str = "",
        annotations: Mapping[str, PartitionSpec] = MappingProxyType({}),
    ):
        self.rebuild = parts.rebuild
        self.key = parts.key()
        self.original_paths = parts.paths(prefix)
        self.paths = clean_paths(self.original_paths)
        self._structs = parts.arrays
        _check_dtypes(self.paths, self._structs, parent)
        self.decisions = [
            decide(f"{parent}/{path}" if parent else path, struct.shape, annotations.get(original))
            for path, original, struct in zip(self.paths, self.original_paths, parts.arrays, strict=True)
        ]
        self.layouts = [decision.layout for decision in self.decisions]
        self.variables: list[keras.Variable] = []

    def create(
        self, initial: Callable[[int], Any], *, trainable: bool, float_dtype: str | None, autocast: bool
    ) -> None:
        """Creates the variables, in the name scope that the layer is built in.

        Args:
            initial: returns the initial value of the variable of an index, when it is needed.
            trainable: whether floating leaves are trained. Others never are.
            float_dtype: the dtype of floating variables; None for that of the values.
            autocast: whether reading a variable casts it to the compute dtype.
        """
        for index, (path, struct, layout) in enumerate(zip(self.paths, self._structs, self.layouts, strict=True)):
            variable = _make_variable(
                path,
                struct,
                functools.partial(initial, index),
                trainable and jnp.issubdtype(struct.dtype, jnp.inexact),
                float_dtype if jnp.issubdtype(struct.dtype, jnp.floating) else None,
                autocast,
                layout,
                _aggregation(struct, trainable),
            )
            remember(variable, self.decisions[index])
            self.variables.append(variable)

    def rows(self) -> Iterator[tuple[str, str, tuple[int, ...], Decision]]:
        """Yields path, path in the pytree, shape and decision of every variable."""
        for path, original, struct, decision in zip(
            self.paths, self.original_paths, self._structs, self.decisions, strict=True
        ):
            yield path, original, tuple(struct.shape), decision

    @property
    def tree(self) -> Any:
        """The pytree of variables."""
        return self.rebuild(self.variables)

    def by_path(self) -> dict[str, keras.Variable]:
        """Returns the variables by their paths below the layer."""
        return dict(zip(self.paths, self.variables, strict=True))

    def values(self) -> list[Any]:
        """Returns the variables' values, cast as the call's dtype policy wants them."""
        try:
            return [variable.value for variable in self.variables]
        except TypeError:
            check_values(self.variables)
            raise

    def trained(self) -> list[bool]:
        """Returns which of the variables are trained, as things are now."""
        return [variable.trainable for variable in self.variables]

    def assign(self, values: list[Any]) -> None:
        """Sets the variables' values; None leaves one as it is."""
        for variable, value in zip(self.variables, values, strict=True):
            if value is not None:
                variable.assign(value)


def check_values(variables: Iterable[keras.Variable]) -> None:
    """Raises a LostVariablesError if variables have no values.

    Keras' training step on JAX takes the values out of the variables and gives their buffers away; where it fails while it
    runs, they are not put back (Keras 3.15).
    """
    for variable in variables:
        try:
            _ = variable.value
        except TypeError as error:  # Keras calls the initializer, of which there is none
            raise LostVariablesError(
                f"Variable '{variable.path}' has no value any more. A `fit` or `train_on_batch` that failed while a step ran "
                "had given its buffers away. Make the model anew, and load its weights if they were saved."
            ) from error


def _make_variable(
    path: str,
    struct: Any,
    initial: Callable[[], Any],
    trainable: bool,
    dtype: str | None,
    autocast: bool,
    layout: Any,
    aggregation: str,
) -> keras.Variable:
    *scopes, name = path.split("/")
    place = backends.current().place

    def initializer(shape: Any, dtype: Any = None) -> Any:
        return place(initial(), dtype, layout) if values_are_wanted() else keras.ops.zeros(shape, dtype)

    with contextlib.ExitStack() as stack:
        for scope in scopes:
            # `Layer.add_weight` drops nested scopes; a Variable made inside them keeps its whole path.
            stack.enter_context(keras.name_scope(scope))
        kind, options = (keras.Variable, {}) if layout is None else (PlacedVariable, {"layout": layout})
        return kind(
            initializer,
            shape=tuple(struct.shape),
            dtype=dtype or np.dtype(struct.dtype).name,
            trainable=trainable,
            autocast=autocast,
            aggregation=aggregation,
            name=name,
            **options,
        )


def _check_dtypes(paths: Sequence[str], structs: Sequence[Any], parent: str) -> None:
    for path, struct in zip(paths, structs, strict=True):
        try:
            keras.backend.standardize_dtype(np.dtype(struct.dtype).name)
        except ValueError as error:
            raise StructureError(
                f"'{path}' of layer '{parent}' has the dtype {struct.dtype}, which Keras has no variables of. Keep it in "
                f"another, such as int8, and cast it where it is used: `w.astype(jnp.{struct.dtype})`."
            ) from error


def _aggregation(struct: Any, trainable: bool) -> str:
    """Returns how the values that the replicas of a `tf.distribute` strategy assign become one: params are the optimizer's.

    With "none", Keras' default, the statistics of each replica would go their own way.
    """
    if trainable:
        return "none"
    return "mean" if jnp.issubdtype(struct.dtype, jnp.inexact) else "only_first_replica"
