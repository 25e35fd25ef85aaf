"""Partition specs as plain data: checked against a mesh's axes and a shape, and written as people write them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from jaxbridge.core.specs import axes_in, indivisible
from jaxbridge.errors import ShardingError

#: What a dimension is split over: nothing, one axis of the mesh, or several, the first one outermost.
Axis = str | tuple[str, ...] | None
Axes = tuple[Axis, ...]


def axes_of_spec(spec: PartitionSpec | Sequence[Axis], rank: int) -> Axes:
    """Returns a spec with one entry per dimension; what is unconstrained, or split over no axis, is None."""
    axes = [_axis(entry) for entry in spec]
    return (*axes, *[None] * (rank - len(axes)))


def _axis(entry: object) -> Axis:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, tuple | list) and entry:
        return entry[0] if len(entry) == 1 else tuple(entry)
    return None


def spec_text(axes: Sequence[Axis] | None) -> str:
    """Returns axes as JAX programs write them.

    Example:
        >>> spec_text((None, ("data", "model")))
        "P(None, ('data', 'model'))"
    """
    return "" if axes is None else f"P({', '.join(repr(axis) for axis in axes)})"


def mesh_text(sizes: Mapping[str, int]) -> str:
    """Returns the axes of a mesh and their sizes as text."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def check_axes(path: str, shape: Sequence[int], axes: Axes, sizes: Mapping[str, int], origin: str) -> None:
    """Checks that an array can be sharded like this.

    Args:
        path: the array's name, for the error.
        shape: its shape.
        axes: per dimension, the axes of the mesh that it is split over.
        sizes: the mesh: size of each axis.
        origin: who asks for it, for the error: "its annotation", "the LayoutMap key '.*kernel'".

    Raises:
        ShardingError: there are more axes than dimensions, an axis is not of the mesh or used twice, or a dimension is not
            divisible.
    """
    what = f"'{path}' of shape {tuple(shape)} cannot be sharded as {spec_text(axes)}, which {origin} asks for"
    if len(axes) > len(shape):
        raise ShardingError(f"{what}: the spec has {len(axes)} entries and the array {len(shape)} dimensions.")
    used = Counter(name for axis in axes for name in axes_in(axis))
    missing = [name for name in used if name not in sizes]
    if missing:
        raise ShardingError(
            f"{what}: the mesh has no axis {', '.join(map(repr, missing))}; its axes are {mesh_text(sizes)}. Name the axes of "
            "the mesh as the spec does, or give this path a key in the LayoutMap, which goes first."
        )
    twice = [name for name, count in used.items() if count > 1]
    if twice:
        raise ShardingError(
            f"{what}: an axis can split one dimension only, and {', '.join(map(repr, twice))} splits two."
        )
    for dim, size, axis in indivisible(axes, shape, sizes):
        parts = math.prod(sizes[name] for name in axes_in(axis))
        raise ShardingError(
            f"{what}: dimension {dim} of size {size} is not divisible by {parts}, the size of {axis!r} in the mesh "
            f"({mesh_text(sizes)}). Take a size that is, or leave this dimension whole (None)."
        )
