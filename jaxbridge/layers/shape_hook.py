"""The `compute_output_shape_fn` hook: asked for shapes, and compared with what really comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from jaxbridge.core.functions import single_input
from jaxbridge.core.shapes import ArraySpec
from jaxbridge.core.tree_paths import leaf_paths
from jaxbridge.errors import StructureError
from jaxbridge.layers.calling import InputStructure
from jaxbridge.layers.structures import known_to_keras


class OutputShapeHook:
    """The user's function from input shapes to output shapes, or none.

    Args:
        fn: takes the input's shape (a tuple with None for unknown sizes, or a structure of such tuples) and returns the
            output's in the same way; or None.
    """

    def __init__(self, fn: Callable[..., Any] | None):
        self.fn = fn
        self._checked: set[Any] = set()

    def output_shapes(self, structure: InputStructure, shapes: Sequence[tuple[int | None, ...]]) -> Any:
        """Returns what the hook gives for inputs of these shapes: a shape, or a structure of shapes."""
        assert self.fn is not None
        return _normalized(self.fn(single_input(structure.rebuild(shapes))))

    def keras_tensors(
        self, structure: InputStructure, shapes: Sequence[tuple[int | None, ...]], traced: Callable[[], Any], dtype: str
    ) -> Any:
        """Returns the outputs as KerasTensors; dtypes are those of `traced()` where its structure is the hook's."""
        given = self.output_shapes(structure, shapes)
        leaves, treedef = jax.tree.flatten(given, is_leaf=_is_shape)
        try:
            specs, traced_treedef = jax.tree.flatten(traced())
            dtypes = [spec.dtype for spec in specs] if traced_treedef == treedef else None
        except Exception:  # the hook is there for functions that cannot be traced with unknown sizes
            dtypes = None
        return jax.tree.unflatten(
            treedef,
            [keras.KerasTensor(s, d) for s, d in zip(leaves, dtypes or [dtype] * len(leaves), strict=True)],
        )

    def check(self, structure: InputStructure, shapes: Sequence[tuple[int | None, ...]], outputs: Any) -> None:
        """Compares outputs with what the hook says, once for every set of input shapes.

        Raises:
            StructureError: they differ in structure or shape.
        """
        if self.fn is None or (structure, tuple(shapes)) in self._checked:
            return
        given = self.output_shapes(structure, shapes)
        wanted, treedef = jax.tree.flatten(given, is_leaf=_is_shape)
        if treedef != jax.tree.structure(outputs):
            outputs = known_to_keras(outputs)
        actual, actual_treedef = jax.tree.flatten(outputs)
        if treedef != actual_treedef:
            raise StructureError(
                f"`compute_output_shape_fn` returned {given!r} for inputs of shape {_shown(shapes)}, of another structure "
                f"than the output: {actual_treedef}."
            )
        for path, want, have in zip(leaf_paths(outputs), wanted, actual, strict=True):
            shape = tuple(have.shape)
            if not ArraySpec(want, "").accepts(ArraySpec(shape, "")):
                where = f"the output '{path}'" if path else "the output"
                raise StructureError(
                    f"`compute_output_shape_fn` returned {want} for inputs of shape {_shown(shapes)}, but {where} has "
                    f"shape {shape}. Correct the function, or leave it out: shapes are then found by tracing."
                )
        self._checked.add((structure, tuple(shapes)))


def _shown(shapes: Sequence[tuple[int | None, ...]]) -> str:
    return ", ".join(map(str, shapes))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(d is None or isinstance(d, int) for d in value)


def _normalized(shapes: Any) -> Any:
    """Returns a shape or structure of shapes with every shape a tuple."""
    if isinstance(shapes, dict):
        return {name: _normalized(shape) for name, shape in shapes.items()}
    if not isinstance(shapes, list | tuple):
        raise StructureError(
            f"`compute_output_shape_fn` must return a shape (a tuple of integers and None) or a structure of shapes, got "
            f"{shapes!r}."
        )
    if all(d is None or isinstance(d, int) for d in shapes):
        return tuple(shapes)
    return (
        type(shapes)(map(_normalized, shapes))
        if type(shapes) in (list, tuple)
        else type(shapes)(*map(_normalized, shapes))
    )
