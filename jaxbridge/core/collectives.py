"""Collectives of JAX: over a named axis inside a traced function, and over the shards of an array outside of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxbridge.errors import ShardingError

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}


def is_bound(axis_name: str) -> bool:
    """Returns whether a function is being traced in which this axis has a name (`shard_map`, `vmap`)."""
    try:
        lax.axis_size(axis_name)
    except NameError:
        return False
    return True


def reduce(x: Any, op: str, axis_name: str) -> Any:
    """Returns the reduction of `x` over a named axis."""
    return REDUCTIONS[op](x, axis_name)


def gather(x: Any, axis: int, axis_name: str) -> Any:
    """Returns the `x` of every index of a named axis, concatenated along `axis`."""
    return lax.all_gather(x, axis_name, axis=axis, tiled=True)


def reduce_scatter(x: Any, op: str, axis: int, axis_name: str) -> Any:
    """Returns this index' part, along `axis`, of the reduction of `x` over a named axis."""
    count = lax.axis_size(axis_name)
    if op in ("sum", "mean"):
        total = lax.psum_scatter(x, axis_name, scatter_dimension=axis, tiled=True)
        return total / count if op == "mean" else total
    # No collective of JAX reduces by max and scatters; every index gets what the others have of its part.
    parts = x.reshape(*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
    parts = lax.all_to_all(parts, axis_name, axis, axis)
    return (jnp.max if op == "max" else jnp.min)(parts, axis)


def broadcast(x: Any, root: int, axis_name: str) -> Any:
    """Returns the `x` of index `root` of a named axis."""
    numbers = x.astype("uint8") if x.dtype == bool else x
    sent = jnp.where(lax.axis_index(axis_name) == root, numbers, jnp.zeros_like(numbers))
    return lax.psum(sent, axis_name).astype(x.dtype)


def over_shards(collective: Callable[[Any], Any], x: Any, axis_name: str, scattered: int | None = None) -> Any:
    """Runs a collective over the devices of a mesh axis, each with its shard of `x`.

    Args:
        collective: a function of a shard, in which `axis_name` is a named axis.
        x: a `jax.Array` with a `NamedSharding`.
        axis_name: an axis of its mesh.
        scattered: the axis along which each device returns another part; None where all return the same.

    Returns:
        The results as one array: sharded as `x` was over the other axes of the mesh, and over `axis_name` along
        `scattered` only.
    """
    sharding = sharding_of(x, axis_name)
    taken = [_without(names, axis_name) for names in (*sharding.spec, *[None] * (x.ndim - len(sharding.spec)))]
    if scattered is not None:
        names = taken[scattered]
        taken[scattered] = axis_name if names is None else (*([names] if isinstance(names, str) else names), axis_name)
    # Results are equal along `axis_name` by what the collectives are, which JAX's check cannot tell of all of them.
    run = jax.shard_map(
        collective, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=PartitionSpec(*taken), check_vma=False
    )
    return jax.jit(run)(x)


def sharding_of(x: Any, axis_name: str) -> NamedSharding:
    """Returns the sharding of an array over a mesh that has this axis.

    Raises:
        ShardingError: there is none.
    """
    where = f"The axis '{axis_name}' is not the name of an axis here"
    if isinstance(x, jax.core.Tracer):
        raise ShardingError(
            f"{where}: a function is being traced, but not under `jax.shard_map` or `jax.vmap` with `axis_name='{axis_name}'`. "
            f"Write `jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)`, or call the collective outside of `jax.jit`."
        )
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        raise ShardingError(
            f"{where}: outside of a traced function a collective takes a jax.Array with a NamedSharding, whose mesh has the "
            f"axes; got {type(x).__name__} with sharding {sharding}. Place it with `jax.device_put(x, NamedSharding(mesh, "
            f"PartitionSpec('{axis_name}')))`."
        )
    if axis_name not in sharding.mesh.axis_names:
        raise ShardingError(f"{where}: the array lies on a mesh with the axes {', '.join(sharding.mesh.axis_names)}.")
    return sharding


def _without(names: Any, axis_name: str) -> Any:
    """Returns one entry of a PartitionSpec without an axis."""
    kept = tuple(name for name in ([names] if isinstance(names, str) else names or ()) if name != axis_name)
    return kept[0] if len(kept) == 1 else kept or None
