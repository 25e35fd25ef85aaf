"""Keras on JAX."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxbridge.backends.base import Backend, Lowering, PureFunction, check_divisible, check_root
from jaxbridge.core import collectives
from jaxbridge.core.jaxprs import warn_closed_over
from jaxbridge.core.shapes import Signature


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
    ) -> PureFunction:
        # Also inside a trace: the inner jit keeps the function's jaxpr for the next layer call of the same shapes.
        jitted = jax.jit(fn)
        is_first = True

        def lifted(params: list[Any], state: list[Any], seeds: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
            nonlocal is_first
            if is_first:
                # The trace is kept: the call below does not trace again.
                warn_closed_over(jitted.trace(params, state, seeds, leaves).jaxpr)
                is_first = False
            return jitted(params, state, seeds, leaves)

        if not inputs.declared:
            return lifted

        def checked(params: list[Any], state: list[Any], seeds: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
            shapes = [leaf.shape for leaf in leaves]
            # In a model that is being exported sizes may be symbols, whose constraints are the export's.
            if all(isinstance(size, int) for shape in shapes for size in shape):
                inputs.check(shapes)
            return lifted(params, state, seeds, leaves)

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
        )
        return lambda values, tensors: converted(values, tensors)

    def serving_platforms(self) -> tuple[str, ...]:
        from jaxbridge.jax2tf.platforms import default_platforms

        return default_platforms()


def _collective(run: Callable[[Any], Any], x: Any, axis_name: str, scattered: int | None = None) -> Any:
    """Runs a collective in the function that is being traced, or over the shards of an array where none is."""
    if collectives.is_bound(axis_name):
        return run(x)
    return collectives.over_shards(run, x, axis_name, scattered)


BACKEND = JaxBackend()
