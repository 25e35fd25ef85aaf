"""Collectives of JAX against numpy, on eight devices: traced and not."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxbridge.distribution import (
    all_gather,
    all_reduce,
    broadcast,
    join_split_tensor,
    reduce_scatter,
    split_tensor_for_parallelism,
)
from jaxbridge.errors import ShardingError
from tests.distribution.checks import Checks

CHECKS = Checks()
P = PartitionSpec
NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}

#: Eight values of float32 are added in another order.
RTOL = 1e-6


def mesh(data=2, model=4):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def values(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def traced_by_shard_map(collective, per_device):
    """Returns what each of eight devices gets, given what each has."""
    run = jax.shard_map(
        lambda x: collective(x[0])[None], mesh=mesh(1, 8), in_specs=P("model"), out_specs=P("model"), check_vma=False
    )
    return np.asarray(jax.jit(run)(per_device))


def traced_by_vmap(collective, per_device):
    return np.asarray(jax.vmap(collective, axis_name="model")(per_device))


TRACED = {"shard_map": traced_by_shard_map, "vmap": traced_by_vmap}
TRACED_OPS = {f"{how}-{op}": (run, op) for how, run in TRACED.items() for op in NUMPY}


@CHECKS.of(TRACED_OPS)
def traced_all_reduce(row):
    run, op = row
    x = values(8, 3, 5)
    got = run(partial(all_reduce, op=op, axis_name="model"), x)
    np.testing.assert_allclose(got, np.broadcast_to(NUMPY[op](x, 0), x.shape), RTOL)


@CHECKS.of(TRACED_OPS)
def traced_reduce_scatter(row):
    run, op = row
    x = values(8, 3, 16)
    got = run(partial(reduce_scatter, op=op, axis=-1, axis_name="model"), x)
    np.testing.assert_allclose(got, np.stack(np.split(NUMPY[op](x, 0), 8, -1)), RTOL, atol=1e-7)


@CHECKS.of(TRACED)
def traced_all_gather(run):
    x = values(8, 3, 5)
    got = run(partial(all_gather, axis=1, axis_name="model"), x)
    np.testing.assert_array_equal(got, np.broadcast_to(np.concatenate(list(x), 1), (8, 3, 40)))


@CHECKS.of({f"{how}-{dtype}": (run, dtype) for how, run in TRACED.items() for dtype in ("float32", "int32", "bool")})
def traced_broadcast(row):
    run, dtype = row
    x = (values(8, 3, 5) * 5).astype(dtype)
    got = run(partial(broadcast, root=3, axis_name="model"), x)
    np.testing.assert_array_equal(got, np.broadcast_to(x[3], x.shape))
    assert got.dtype == x.dtype


@CHECKS.of()
def a_broadcast_takes_nothing_from_the_others():
    x = values(8, 3)
    x[[0, 7]] = np.nan
    np.testing.assert_array_equal(traced_by_vmap(partial(broadcast, root=3), x), np.broadcast_to(x[3], x.shape))


@CHECKS.of(TRACED)
def uneven_parts_are_gathered_to_the_whole(run):
    """A device that knows its index only at run time takes its part; the gathered parts are the tensor."""
    for size in (1, 3, 7, 8, 9, 13, 16):
        x = values(size, 3)

        def there_and_back(whole, size=size):
            part = split_tensor_for_parallelism(whole, jax.lax.axis_index("model"), 8, 0)
            assert part.shape == (-(-size // 8), 3)
            return all_gather(part, 0, "model", size=size)

        got = run(there_and_back, np.broadcast_to(x, (8, *x.shape)))
        np.testing.assert_array_equal(got, np.broadcast_to(x, got.shape))


@CHECKS.of()
def gradients_of_traced_collectives():
    """Of the sum over devices of w * collective(x): the transpose of the collective, by hand."""
    x, w = values(8, 16), values(8, 16)

    def gradient(collective, weight):
        each = jax.vmap(collective, axis_name="model")
        return np.asarray(jax.grad(lambda x: jnp.sum(each(x) * weight))(x))

    np.testing.assert_allclose(gradient(partial(all_reduce, op="sum"), w), np.broadcast_to(w.sum(0), w.shape), 1e-5)
    np.testing.assert_allclose(gradient(partial(all_reduce, op="mean"), w), np.broadcast_to(w.mean(0), w.shape), 1e-5)
    np.testing.assert_allclose(
        gradient(partial(reduce_scatter), w[:, :2]), np.broadcast_to(w[:, :2].ravel(), w.shape), 1e-5
    )
    expected = np.zeros_like(w)
    expected[2] = w.sum(0)
    np.testing.assert_allclose(gradient(partial(broadcast, root=2), w), expected, 1e-5, atol=1e-6)


# Outside of a traced function: the shards of an array are the values.

#: How an array of shape (16, 24) lies on a mesh of 2 x 4, and where the results of an all_reduce over "model" do.
PLACES = {
    "along axis 0": (P("model"), P(None)),
    "along axis 1": (P(None, "model"), P(None)),
    "along axis 1, data along 0": (P("data", "model"), P("data")),
    "both along axis 0": (P(("data", "model")), P("data")),
    "both along axis 0, model first": (P(("model", "data")), P("data")),
    "data only": (P("data"), P("data")),
    "replicated": (P(), P()),
}


def placed(x, spec):
    return jax.device_put(x, NamedSharding(mesh(), spec))


def oracle(array, collective):
    """Runs a collective over the "model" axis on the shards, in numpy: device -> result."""
    grid = mesh().devices
    shards = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    return {
        device: result for row in grid for device, result in zip(row, collective([shards[d] for d in row]), strict=True)
    }


def assert_shards(result, expected, spec):
    assert result.sharding.is_equivalent_to(NamedSharding(mesh(), spec), result.ndim), result.sharding
    for shard in result.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), expected[shard.device], RTOL, atol=1e-7)


@CHECKS.of({f"{place}, {op}": (*specs, op) for place, specs in PLACES.items() for op in NUMPY})
def all_reduce_of_shards(row):
    spec, result_spec, op = row
    x = placed(values(16, 24), spec)
    expected = oracle(x, lambda shards: [NUMPY[op](np.stack(shards), 0)] * 4)
    assert_shards(all_reduce(x, op, "model"), expected, result_spec)


@CHECKS.of({f"{place}, axis {axis}": (*specs, axis) for place, specs in PLACES.items() for axis in (0, 1)})
def all_gather_of_shards(row):
    spec, result_spec, axis = row
    x = placed(values(16, 24), spec)
    expected = oracle(x, lambda shards: [np.concatenate(shards, axis)] * 4)
    assert_shards(all_gather(x, axis, "model"), expected, result_spec)


@CHECKS.of()
def all_gather_along_the_sharded_axis_is_the_array():
    x = values(16, 24)
    gathered = all_gather(placed(x, P(None, "model")), 1, "model")
    np.testing.assert_array_equal(np.asarray(gathered), x)
    assert gathered.sharding.is_fully_replicated


@CHECKS.of({f"{place}, {op}": (*specs, op) for place, specs in PLACES.items() for op in ("sum", "max")})
def reduce_scatter_of_shards(row):
    spec, reduced, op = row
    x = placed(values(32, 24), spec)
    expected = oracle(x, lambda shards: np.split(NUMPY[op](np.stack(shards), 0), 4, 0))
    first = (*reduced, None)[0]
    assert_shards(reduce_scatter(x, op, 0, "model"), expected, P(("data", "model") if first else "model"))


@CHECKS.of(PLACES)
def broadcast_of_shards(row):
    spec, result_spec = row
    x = placed(values(16, 24), spec)
    expected = oracle(x, lambda shards: [shards[2]] * 4)
    assert_shards(broadcast(x, 2, "model"), expected, result_spec)


ERRORS = {
    "an operation that there is not": (
        lambda: all_reduce(placed(values(8), P("model")), "product"),
        ValueError,
        r"'sum', 'mean', 'max', 'min'.*'product'",
    ),
    "an axis that the mesh has not": (
        lambda: all_reduce(placed(values(8), P("model")), axis_name="rows"),
        ShardingError,
        r"'rows'.*data, model",
    ),
    "an array on no mesh": (lambda: all_reduce(jnp.ones(8)), ShardingError, r"device_put\(x, NamedSharding"),
    "traced without the name": (lambda: jax.jit(all_reduce)(jnp.ones(8)), ShardingError, r"jax.shard_map"),
    "an uneven reduce_scatter of shards": (
        lambda: reduce_scatter(placed(values(6, 8), P()), axis=0),
        ShardingError,
        r"axis 0 has size 6 .* 4 devices of 'model'. Pad it to 8, or use `all_reduce`",
    ),
    "an uneven reduce_scatter, traced": (
        lambda: traced_by_vmap(partial(reduce_scatter, axis=0), values(8, 12)),
        ShardingError,
        r"size 12 .* 8 devices",
    ),
    "a root that there is not": (
        lambda: broadcast(placed(values(8), P("model")), 4),
        ShardingError,
        r"from 0 to 3.*got 4",
    ),
    "an axis that the tensor has not": (
        lambda: all_gather(placed(values(8), P("model")), 1),
        ShardingError,
        r"`axis=1` is no axis of a tensor with 1",
    ),
    "a size that does not fit": (
        lambda: all_gather(placed(values(8), P("model")), 0, size=13),
        ShardingError,
        r"`size=13` has parts of 4 on 4 devices, and .* 2 along axis 0",
    ),
}


@CHECKS.of(ERRORS)
def mistakes_with_collectives(row):
    call, error, text = row
    with pytest.raises(error, match=text):
        call()


@CHECKS.of()
def parts_placed_on_devices_are_gathered_to_the_whole():
    """Uneven parts cannot be one array of JAX; padded ones can, and come back whole."""
    x = values(13, 3)
    parts = [split_tensor_for_parallelism(x, jnp.int32(index), 4, 0) for index in range(4)]
    gathered = all_gather(placed(np.concatenate(parts), P("model")), 0, "model", size=13)
    np.testing.assert_array_equal(np.asarray(gathered), x)
    whole = [split_tensor_for_parallelism(x, index, 4, 0) for index in range(4)]
    np.testing.assert_array_equal(join_split_tensor(whole, 0), x)
