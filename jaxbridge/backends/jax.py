"""Keras on JAX."""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbridge.backends.base import Backend, LiftedFunction, Lowering, PureFunction, check_divisible, check_root
from jaxbridge.core import collectives
from jaxbridge.core.jaxprs import warn_closed_over
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import ShardingError


class JaxBackend(Backend):
    concrete_shapes = True
    traces_with_jax = True
    seed_dtype = "uint32"

    def lift(
        self,
        fn: PureFunction,
        variables: tuple[list[Any], list[Any], Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> LiftedFunction:
        # Also inside a trace: the inner jit keeps the function's jaxpr for the next layer call of the same shapes.
        jitted = jax.jit(fn)
        is_first = True

        def lifted(params: list[Any], state: list[Any], seeds: Any, leaves: list[Any], trained: Any) -> Any:
            nonlocal is_first
            if is_first:
                # The trace is kept: the call below does not trace again.
                warn_closed_over(jitted.trace(params, state, seeds, leaves).jaxpr)
                is_first = False
            return jitted(params, state, seeds, leaves)

        if not inputs.declared:
            return lifted

        def checked(params: list[Any], state: list[Any], seeds: Any, leaves: list[Any], trained: Any) -> Any:
            shapes = [leaf.shape for leaf in leaves]
            # In a model that is being exported sizes may be symbols, whose constraints are the export's.
            if all(isinstance(size, int) for shape in shapes for size in shape):
                inputs.check(shapes)
            return lifted(params, state, seeds, leaves, trained)

        return checked

    def build_scope(self) -> contextlib.AbstractContextManager[Any]:
        return jax.ensure_compile_time_eval()

    def seed_words(self, seed: Any) -> Any:
        return seed

    def static_flag(self, flag: Any) -> bool | None:
        return None if isinstance(flag, jax.core.Tracer) else bool(np.asarray(flag))

    def gradient(self, fn: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
        return jax.grad(fn)(values)

    def trace(self, fn: Callable[..., Any], *structs: Any) -> Any:
        return jax.make_jaxpr(fn)(*structs)

    def join_processes(
        self, address: str | None, count: int | None, index: int | None, timeout: int, heartbeat_timeout: int
    ) -> None:
        jax.distributed.initialize(
            address,
            count,
            index,
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
            shutdown_timeout_seconds=timeout,
        )

    def common_seed(self) -> int:
        return int(multihost_utils.broadcast_one_to_all(np.uint32(random.randrange(1, 2**31))))

    def host_value(self, x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        return np.asarray(x) if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True)

    def axis_size(self, x: Any, axis_name: str) -> int:
        if collectives.is_bound(axis_name):
            return jax.lax.axis_size(axis_name)
        return collectives.sharding_of(x, axis_name).mesh.shape[axis_name]

    def all_reduce(self, x: Any, op: str, axis_name: str) -> Any:
        return _collective(lambda shard: collectives.reduce(shard, op, axis_name), x, axis_name)

    def all_gather(self, x: Any, axis: int, axis_name: str) -> Any:
        return _collective(lambda shard: collectives.gather(shard, axis, axis_name), x, axis_name)

    def reduce_scatter(self, x: Any, op: str, axis: int, axis_name: str) -> Any:
        def checked(shard: Any) -> Any:
            check_divisible(shard.shape[axis], axis, jax.lax.axis_size(axis_name), axis_name)
            return collectives.reduce_scatter(shard, op, axis, axis_name)

        return _collective(checked, x, axis_name, scattered=axis)

    def broadcast(self, x: Any, root: int, axis_name: str) -> Any:
        def checked(shard: Any) -> Any:
            check_root(root, jax.lax.axis_size(axis_name), axis_name)
            return collectives.broadcast(shard, root, axis_name)

        return _collective(checked, x, axis_name)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(fn)

    def serving_function(
        self,
        fn: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, list[Any]]],
        variables: Sequence[Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> Callable[[list[Any], list[Any]], tuple[Any, list[Any]]]:
        # The whole model is one function and is converted as one; TensorFlow is needed only from here on.
        from jaxbridge.jax2tf import convert

        texts = [None] * len(variables), list(inputs.shapes)
        converted = convert(
            fn,
            polymorphic_shapes=texts,
            polymorphic_constraints=inputs.constraints,
            native_serialization_platforms=lowering.platforms,
            stablehlo_version=lowering.target,
            nan=lowering.nan or "keep",
            source_info=lowering.source_info,
        )
        return lambda values, tensors: converted(values, tensors)

    def serving_platforms(self) -> tuple[str, ...]:
        from jaxbridge.jax2tf.platforms import default_platforms

        return default_platforms()

    # Distribution.

    distributes = True

    def mesh(self, device_mesh: Any) -> Any:
        try:
            return device_mesh.backend_mesh
        except ValueError as error:
            raise ShardingError(
                f"A mesh of {device_mesh.devices.size} devices cannot be made of those that JAX has: {error}. It has "
                f"{', '.join(f'{device.platform}:{device.id}' for device in jax.devices())}."
            ) from error

    def mesh_parts(self, mesh: Any) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
        devices = [f"{device.platform}:{device.id}" for device in mesh.devices.flat]
        return tuple(mesh.devices.shape), tuple(mesh.axis_names), devices

    def layout(self, mesh: Any, axes: tuple[Any, ...]) -> Any:
        return NamedSharding(mesh, PartitionSpec(*axes))

    def layout_parts(self, layout: Any) -> tuple[Any, tuple[Any, ...]]:
        if not isinstance(layout, NamedSharding):
            raise ShardingError(f"{layout} has no named mesh; only a jax.sharding.NamedSharding has.")
        return layout.mesh, tuple(layout.spec)

    def place(self, value: Any, dtype: str, layout: Any) -> Any:
        if isinstance(value, jax.Array):
            value = keras.ops.convert_to_tensor(value, dtype=dtype)
            is_there = layout is None or value.sharding.is_equivalent_to(layout, value.ndim)
            return value if is_there else jax.device_put(value, layout)
        if layout is None:
            return keras.ops.convert_to_tensor(np.asarray(value), dtype=dtype)
        host = np.asarray(value, dtype)
        return jax.make_array_from_callback(host.shape, layout, lambda index: host[index])

    def device_bytes(self, shape: tuple[int, ...], dtype: str, layout: Any) -> int:
        shard = shape if layout is None else layout.shard_shape(shape)
        return math.prod(shard) * jnp.dtype(dtype).itemsize

    def brought_to(self, mesh: Any, values: list[Any], names: Callable[[int], str]) -> list[Any]:
        return [_brought_to(mesh, value, names, number) for number, value in enumerate(values)]

    def compiled_shardings(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
        # Arguments that are not used would be dropped, and their shardings with them.
        compiled = jax.jit(fn, keep_unused=True).lower(*args).compile()
        return compiled.input_shardings[0], compiled.output_shardings


def _collective(run: Callable[[Any], Any], x: Any, axis_name: str, scattered: int | None = None) -> Any:
    """Runs a collective in the function that is being traced, or over the shards of an array where none is."""
    if collectives.is_bound(axis_name):
        return run(x)
    return collectives.over_shards(run, x, axis_name, scattered)


BACKEND = JaxBackend()


def _brought_to(mesh: Mesh, value: Any, names: Callable[[int], str], number: int) -> Any:
    """Returns a value as it is where a computation on the mesh can take it, else a copy on the mesh."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array) or not value.committed:
        return value  # what is not committed to a device JAX puts where it is needed
    sharding = value.sharding
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        # The devices must be the same ones in the same order; names and sizes of the axes are free.
        if list(sharding.mesh.devices.flat) == list(mesh.devices.flat):
            return value
        spec = _spec_on(mesh, sharding.spec, value.shape)
    elif len(sharding.device_set) > 1 and sharding.device_set == set(mesh.devices.flat):
        return value
    else:
        spec = PartitionSpec()
    target = NamedSharding(mesh, spec)
    warnings.warn(
        f"{names(number)} is on other devices than the layer's variables and was copied: from {sharding} to {target}. "
        "Put it there once with `jax.device_put`, or make it there, to save the copy.",
        stacklevel=2,
    )
    return jax.device_put(value, target)


def _spec_on(mesh: Mesh, spec: PartitionSpec, shape: tuple[int, ...]) -> PartitionSpec:
    """Returns a spec of another mesh where it fits this one, else none."""
    try:
        NamedSharding(mesh, spec).shard_shape(shape)
    except ValueError:  # an axis is missing, or a size is not divisible
        return PartitionSpec()
    return spec
