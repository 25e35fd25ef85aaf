"""Collectives: what the devices of an axis compute together.

On the JAX backend there are two places to call them. Inside a function that is traced with a named axis (`jax.shard_map`,
`jax.vmap(axis_name=)`) `x` is the value of the device that runs it, and so is the result. Outside, `x` is an array with a
`NamedSharding`: the shard that a device holds is that device's value, in the shape that the shard has. A result that is
the same on all devices of the axis comes as an array that is not sharded over it; over other axes of the mesh it is
sharded as `x` is.

On the TensorFlow backend they are called by each replica of a `tf.distribute` strategy, which has one axis, whatever its
name.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

from jaxbridge import backends
from jaxbridge.backends.base import Backend
from jaxbridge.distribution.tensor_parallel import normalized_axis, without_padding

REDUCTIONS = ("sum", "mean", "max", "min")


def all_reduce(x: Any, op: str = "sum", axis_name: str = "model") -> Any:
    """Reduces a tensor over the devices of an axis; every device gets the result.

    Args:
        x: each device's tensor, of any shape, the same on all devices. Outside of a traced function an array sharded as
            the module's documentation says.
        op: "sum", "mean" (of integers: a float), "max" or "min".
        axis_name: the axis: that of `jax.shard_map` or `jax.vmap`, or of the array's mesh. Not used on TensorFlow.

    Returns:
        A tensor of the shape that `x` has on each device.

    Raises:
        ValueError: `op` is none of these.
        ShardingError: `axis_name` is not the name of an axis here, or no replica is running (TensorFlow).

    Example, four devices that hold two rows each:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from jaxbridge.distribution import all_reduce
        >>> rows = np.arange(8.0).reshape(4, 2)
        >>> jax.vmap(partial(all_reduce, op="max", axis_name="model"), axis_name="model")(rows)[0].tolist()
        [6.0, 7.0]
    """
    if op not in REDUCTIONS:
        raise ValueError(f"`op` must be one of {', '.join(map(repr, REDUCTIONS))}, got {op!r}.")
    x, backend = _tensor_and_backend(x)
    return backend.all_reduce(x, op, axis_name)


def all_gather(x: Any, axis: int = 0, axis_name: str = "model", *, size: int | None = None) -> Any:
    """Concatenates the tensors of the devices of an axis; every device gets the result.

    Args:
        x: each device's tensor, of one shape on all devices. Outside of a traced function an array sharded as the
            module's documentation says: gathered along the axis it is sharded over, it comes back whole.
        axis: the axis to concatenate along.
        axis_name: as for `all_reduce`.
        size: the size of `axis` in the result, where `x` is padded: what `split_tensor_for_parallelism` gives for a
            traced index. The padding is left out.

    Returns:
        A tensor whose `axis` is as many times larger as there are devices, or has `size`.

    Raises:
        ShardingError: as for `all_reduce`, or `size` does not fit.
    """
    x, backend = _tensor_and_backend(x)
    axis = normalized_axis(axis, len(x.shape))
    gathered = backend.all_gather(x, axis, axis_name)
    return gathered if size is None else without_padding(gathered, axis, size, backend.axis_size(x, axis_name))


def reduce_scatter(x: Any, op: str = "sum", axis: int = 0, axis_name: str = "model") -> Any:
    """Reduces a tensor over the devices of an axis; each device gets its part of the result.

    Args:
        x: as for `all_reduce`.
        op: as for `all_reduce`.
        axis: the axis of `x` to divide among the devices; its size is a multiple of their number.
        axis_name: as for `all_reduce`.

    Returns:
        A tensor of the shape that `x` has on each device, with `axis` divided by the number of devices. Outside of a
        traced function: the whole, sharded along `axis`.

    Raises:
        ValueError: `op` is no reduction.
        ShardingError: as for `all_reduce`, or the size of `axis` cannot be divided.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"`op` must be one of {', '.join(map(repr, REDUCTIONS))}, got {op!r}.")
    x, backend = _tensor_and_backend(x)
    return backend.reduce_scatter(x, op, normalized_axis(axis, len(x.shape)), axis_name)


def broadcast(x: Any, root: int = 0, axis_name: str = "model") -> Any:
    """Gives every device of an axis the tensor of one of them.

    Args:
        x: as for `all_reduce`.
        root: the index, along the axis, of the device whose tensor it is.
        axis_name: as for `all_reduce`.

    Returns:
        A tensor of the shape that `x` has on each device.

    Raises:
        ShardingError: as for `all_reduce`, or there is no device `root`.
    """
    x, backend = _tensor_and_backend(x)
    return backend.broadcast(x, root, axis_name)


def _tensor_and_backend(x: Any) -> tuple[Any, Backend]:
    """Returns `x` as a tensor, and the backend whose tensor it is: JAX functions are traced with JAX's on each of them."""
    x = x if isinstance(x, jax.Array) else keras.ops.convert_to_tensor(x)
    return x, backends.of(x)
