"""A tensor in as many parts as there are devices, of sizes that may be uneven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge.errors import ShardingError


def split_tensor_for_parallelism(x: Any, index: Any, device_count: int, dim: int) -> Any:
    """Returns the part of a tensor that belongs to one device.

    The parts are those of `numpy.array_split`: where the size cannot be divided, the first ones are larger by one.

    Args:
        x: a tensor, variable or numpy array of any shape, on either backend.
        index: the device's index, from 0 to `device_count - 1`. Where it is a tensor that only the running function knows
            (`jax.lax.axis_index`), all parts have the size of the largest, and those that are smaller end in zeros;
            `all_gather(..., size=)` leaves them out again.
        device_count: the number of parts, at least 1.
        dim: the dimension to split; -1 is the last.

    Returns:
        The part: a numpy array of a numpy array, else a tensor.

    Raises:
        ShardingError: `index`, `device_count` or `dim` is out of range, or the size of `dim` is not known.

    Example:
        >>> import numpy as np
        >>> from jaxbridge.distribution import join_split_tensor, split_tensor_for_parallelism
        >>> x = np.arange(7)
        >>> parts = [split_tensor_for_parallelism(x, index, 3, 0) for index in range(3)]
        >>> [part.tolist() for part in parts]
        [[0, 1, 2], [3, 4], [5, 6]]
        >>> join_split_tensor(parts, 0).tolist() == x.tolist()
        True
    """
    if isinstance(device_count, bool) or not isinstance(device_count, int | np.integer) or device_count < 1:
        raise ShardingError(f"`device_count` must be an integer of at least 1, got {device_count!r}.")
    x = as_tensor(x)
    dim = normalized_axis(dim, len(x.shape), "dim")
    size = x.shape[dim]
    if size is None:
        raise ShardingError(
            f"A tensor of shape {tuple(x.shape)} cannot be split along dimension {dim}, whose size is unknown."
        )
    if not isinstance(index, int | np.integer):
        return _padded_part(x, index, device_count, dim)
    if not 0 <= index < device_count:
        raise ShardingError(f"`index` must be from 0 to {device_count - 1} for {device_count} devices, got {index}.")
    sizes = part_sizes(size, device_count)
    start = sum(sizes[:index])
    return x[(*[slice(None)] * dim, slice(start, start + sizes[index]))]


def join_split_tensor(parts: Sequence[Any], dim: int) -> Any:
    """Returns the tensor whose parts these are: the inverse of `split_tensor_for_parallelism`, on one device.

    Args:
        parts: the parts of all devices, in their order.
        dim: the dimension that was split.

    Returns:
        The whole: a numpy array of numpy arrays, else a tensor.

    Raises:
        ShardingError: there is no part.
    """
    if not parts:
        raise ShardingError("`join_split_tensor` needs at least one part.")
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts, dim)
    return namespace_of(parts[0]).concatenate(parts, axis=dim)


def part_sizes(size: int, count: int) -> list[int]:
    """Returns the sizes of `count` parts, as `numpy.array_split` makes them."""
    quotient, rest = divmod(size, count)
    return [quotient + (index < rest) for index in range(count)]


def without_padding(gathered: Any, axis: int, size: int, count: int) -> Any:
    """Returns `count` parts, each padded to one size and joined along `axis`, without their padding.

    Raises:
        ShardingError: a tensor of this `size` does not have parts of that size.
    """
    sizes = part_sizes(size, count)
    found = gathered.shape[axis]  # not known in a graph of TensorFlow
    if found is not None and found != sizes[0] * count:
        raise ShardingError(
            f"`size={size}` has parts of {sizes[0]} on {count} devices, and the tensors on the devices have "
            f"{found // count} along axis {axis}."
        )
    if size == sizes[0] * count:
        return gathered
    kept = np.concatenate([np.arange(part) + sizes[0] * index for index, part in enumerate(sizes)])
    return namespace_of(gathered).take(gathered, kept, axis=axis)


def normalized_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Returns an axis as a number from 0; a ShardingError where the tensor has none of this number."""
    if not -rank <= axis < rank:
        raise ShardingError(f"`{name}={axis}` is no axis of a tensor with {rank} axes.")
    return axis % rank


def as_tensor(x: Any) -> Any:
    """Returns `x` as a tensor; arrays of numpy, JAX and the backend as they are."""
    return x if isinstance(x, np.ndarray | jax.Array) or keras.ops.is_tensor(x) else keras.ops.convert_to_tensor(x)


def namespace_of(x: Any) -> Any:
    """Returns the functions for a tensor: a JAX function is traced with JAX arrays on every backend."""
    return jnp if isinstance(x, jax.Array) else keras.ops


def _padded_part(x: Any, index: Any, count: int, dim: int) -> Any:
    """Returns the part of an index that only the running function knows, padded to the size of the largest part."""
    ops = namespace_of(index)
    quotient, rest = divmod(x.shape[dim], count)
    rows = ops.arange(quotient + bool(rest))
    wanted = index * quotient + ops.minimum(index, rest) + rows
    part = ops.take(ops.asarray(x) if ops is jnp else x, ops.minimum(wanted, x.shape[dim] - 1), axis=dim)
    is_padding = ops.logical_and(index >= rest, rows == quotient)
    is_padding = ops.reshape(is_padding, [-1 if axis == dim else 1 for axis in range(len(x.shape))])
    return ops.where(is_padding, ops.zeros_like(part), part)
