"""Specs of arrays on a mesh of devices: read, translated by rules, held against shapes, written as JSON.

A spec is a `jax.sharding.PartitionSpec`; a mesh is a mapping from the names of its axes to their sizes.
"""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxbridge.errors import ShardingError

#: (logical axis, mesh axis or axes, None for "not split"), the first that fits wins.
Rules = tuple[tuple[str, Any], ...]

#: (path or pattern, spec).
Specs = tuple[tuple[str, P], ...]


def axes_of(mesh: Any) -> dict[str, int]:
    """Returns name -> size of the axes of a mesh: a mapping, a mesh of JAX, or a `keras.distribution.DeviceMesh`.

    Raises:
        ShardingError: it is none of these, or a size is no positive integer.
    """
    if isinstance(mesh, Mapping):
        axes = dict(mesh)
    elif hasattr(mesh, "axis_names"):
        sizes = mesh.shape.values() if isinstance(mesh.shape, Mapping) else mesh.shape
        axes = dict(zip(mesh.axis_names, sizes, strict=True))
    else:
        axes = {}
    is_size = lambda size: isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0
    if not axes or not all(isinstance(name, str) and is_size(size) for name, size in axes.items()):
        raise ShardingError(
            f"`mesh` must be names with sizes such as {{'data': 2, 'model': 4}}, or a mesh of JAX or Keras; got {mesh!r}."
        )
    return {name: int(size) for name, size in axes.items()}


def abstract_mesh(axes: Mapping[str, int]) -> AbstractMesh:
    """Returns a mesh of these axes, without devices."""
    # Named, because the default is Auto in jax 0.10 and Explicit in 0.12.
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def device_mesh(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh of these axes over the first of these devices (None: of `jax.devices()`)."""
    devices = jax.devices() if devices is None else list(devices)
    count = math.prod(axes.values())
    if len(devices) < count:
        raise ShardingError(
            f"The mesh {dict(axes)} needs {count} devices, and there are {len(devices)}. Give a smaller mesh, such as "
            f"{dict.fromkeys(axes, 1)}."
        )
    return Mesh(np.array(devices[:count]).reshape(tuple(axes.values())), tuple(axes))


def mesh_spec(spec: P, rules: Rules, axes: Mapping[str, int], where: str) -> P:
    """Returns a spec with its logical axes translated by the rules.

    Raises:
        ShardingError: an axis is neither of the mesh nor in the rules.
    """
    logical = {name for name, _ in rules}
    known = list(dict.fromkeys(axis for entry in spec for axis in axes_in(entry)))
    for axis in known:
        if axis not in logical and axis not in axes:
            raise missing_axis(where, spec, axis, axes)
    taken = {axis for axis in known if axis not in logical}
    chosen: dict[str, Any] = {}
    for name, target in rules:
        if name in known and name not in chosen and not taken & set(axes_in(target)):
            chosen[name] = target
            taken |= set(axes_in(target))
    entries = []
    for entry in spec:
        if entry is None or entry is P.UNCONSTRAINED:
            entries.append(entry)
            continue
        # A logical axis whose mesh axes are all taken by other dimensions is not split, as in flax.
        parts = [a for axis in axes_in(entry) for a in (axes_in(chosen.get(axis)) if axis in logical else (axis,))]
        entries.append(None if not parts else parts[0] if len(parts) == 1 else tuple(parts))
    used = [axis for entry in entries for axis in axes_in(entry)]
    if len(set(used)) < len(used):
        raise ShardingError(f"{_upper(where)} has the spec {spec}, which uses an axis of the mesh twice.")
    for axis in used:
        if axis not in axes:
            raise missing_axis(where, spec, axis, axes)
    return P(*entries)


def check_spec(
    spec: P, shape: Sequence[Any], axes: Mapping[str, int], where: str, *, batch: bool = False, warns: bool = True
) -> None:
    """Raises a ShardingError if an array of this shape cannot be split so; sizes that are no numbers are not checked.

    Args:
        spec: in mesh axes.
        shape: the array's sizes.
        axes: the mesh.
        where: how the message names the array.
        batch: whether axis 0 is a batch, whose size may be another next time: it gives a warning only.
        warns: whether it gives that.
    """
    if len(spec) > len(shape):
        raise ShardingError(
            f"{_upper(where)} of shape {_shown(shape)} has the spec {spec} of {len(spec)} entries: more than it has axes."
        )
    for dimension, size, entry in indivisible(spec, shape, axes):
        factor = math.prod(axes[axis] for axis in axes_in(entry))
        names = ", ".join(f"{axis!r} of size {axes[axis]}" for axis in axes_in(entry))
        text = (
            f"{_upper(where)} of shape {_shown(shape)} cannot be split by {spec}: axis {dimension} has size {size}, "
            f"which is not divisible by {factor} ({names})."
        )
        if not (batch and dimension == 0):
            raise ShardingError(f"{text} Choose another size, spec or mesh.")
        if warns:
            _warn(
                f"{text} JAX leaves this axis whole for this batch. Choose a batch size that is a multiple of {factor}."
            )


def indivisible(
    spec: P | Sequence[Any], shape: Sequence[Any], axes: Mapping[str, int]
) -> Iterator[tuple[int, int, Any]]:
    """Yields dimension, size and entry of the spec where the size is known and cannot be split evenly."""
    for dimension, (size, entry) in enumerate(zip(shape, spec, strict=False)):
        factor = math.prod(axes[axis] for axis in axes_in(entry))
        if isinstance(size, int) and size % factor:
            yield dimension, size, entry


def missing_axis(where: str, spec: P, axis: str, axes: Mapping[str, int]) -> ShardingError:
    """Returns the error for an axis that the mesh does not have."""
    return ShardingError(
        f"{_upper(where)} has the spec {spec}, and '{axis}' is no axis of the mesh {dict(axes)}. Write one of its axes, "
        f"give a mesh that has it, or a rule: `Sharding(..., rules={{'{axis}': '{next(iter(axes))}'}})`."
    )


def spec_to_list(spec: P) -> list[Any]:
    """Returns a spec as JSON can hold it: a list with null, a name, a list of names or {} (unconstrained) per axis."""
    return [{} if e is P.UNCONSTRAINED else list(e) if isinstance(e, tuple) else e for e in spec]


def spec_from_list(entries: Sequence[Any]) -> P:
    """Returns the spec that `spec_to_list` wrote."""
    return P(*(P.UNCONSTRAINED if e == {} else tuple(e) if isinstance(e, list) else e for e in entries))


def as_spec(value: Any, where: str) -> P:
    """Returns a spec given as a `PartitionSpec` or a tuple of its entries, in its shortest form."""
    if not isinstance(value, P | tuple):
        raise ShardingError(f"{_upper(where)} must be a jax.sharding.PartitionSpec, got {value!r}.")
    if getattr(value, "unreduced", None) or getattr(value, "reduced", None):
        raise ShardingError(f"{_upper(where)} has the spec {value}; unreduced axes are not supported.")
    for entry in value:
        is_name = entry is None or entry is P.UNCONSTRAINED or isinstance(entry, str)
        if not is_name and not (isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry)):
            raise ShardingError(f"{_upper(where)} has {entry!r} in its spec; write an axis, a tuple of axes or None.")
    shortest = lambda names: None if not names else names[0] if len(names) == 1 else tuple(names)
    return P(*(shortest(entry) if isinstance(entry, tuple | list) else entry for entry in value))


def variable_specs(specs: Specs, paths: Sequence[str], originals: Sequence[str] | None = None) -> dict[str, P]:
    """Returns path -> spec, as it was written, for those of these variables that `specs` names.

    An exact path wins over patterns; the first part of a path (the collection) may be left out.

    Args:
        specs: path or pattern -> spec.
        paths: the variables.
        originals: their paths before they were cleaned, which `specs` may use as well.

    Raises:
        ShardingError: an entry names none of the variables, or two patterns say different things of one.
    """
    spellings = [
        {name for path in pair for name in (path, path.partition("/")[2])}
        for pair in zip(paths, originals or paths, strict=True)
    ]
    matches = lambda key, names: key in names or any(fnmatch.fnmatchcase(name, key) for name in names)
    for key, _ in specs:
        if not any(matches(key, names) for names in spellings):
            raise ShardingError(
                f"The entry '{key}' of `params` names no variable. The variables are: {', '.join(paths) or 'none'}."
            )
    found: dict[str, P] = {}
    for path, names in zip(paths, spellings, strict=True):
        exact = [pair for pair in specs if pair[0] in names]
        matching = exact or [pair for pair in specs if matches(pair[0], names)]
        if any(spec != matching[0][1] for _, spec in matching):
            said = ", ".join(f"'{key}': {spec}" for key, spec in matching)
            raise ShardingError(f"Variable '{path}' has several entries in `params`: {said}. Write its exact path.")
        if matching:
            found[path] = matching[0][1]
    return found


def tree_specs(specs: Specs, paths: Sequence[str], what: str) -> list[P | None]:
    """Returns the spec, as it was written, of each leaf of the inputs or outputs: that of the longest path above it.

    Raises:
        ShardingError: an entry is above none of the leaves.
    """
    is_above = lambda key, path: not key or f"{path}/".startswith(f"{key}/")
    for key, _ in specs:
        if not any(is_above(key, path) for path in paths):
            said = f"`{what}s` has a spec for '{key}'"
            if tuple(paths) == ("",):  # the array itself, in no structure
                raise ShardingError(
                    f"{said}, and there is one {what}, in no structure that has such a place. One {what} takes one "
                    f"PartitionSpec: `{what}s=PartitionSpec('data')`."
                )
            raise ShardingError(f"{said}; the {what}s are: {', '.join(paths) or 'none'}.")
    found = []
    for path in paths:
        above = [pair for pair in specs if is_above(pair[0], path)]
        found.append(max(above, key=lambda pair: len(pair[0]))[1] if above else None)
    return found


_silent: contextvars.ContextVar[bool] = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Returns a context without warnings of batch sizes, for traces at sizes that nobody has asked for."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def _warn(text: str) -> None:
    if not _silent.get():
        warnings.warn(text, stacklevel=4)


def axes_in(entry: Any) -> tuple[str, ...]:
    """Returns the names in an entry of a spec."""
    if entry is None or entry is P.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
