"""Which dimensions operations make one, and what splitting them costs."""

import jax
import jax.numpy as jnp
import pytest

from jaxbridge.core.dimension_flow import follow
from jaxbridge.core.dimensions import LATENCY_BYTES, Dimensions, reshape_groups


def followed(fn, shapes, x=(2, 4), dtype="float32"):
    """Follows `fn(params, x)`; parameter i is the i-th of the shapes."""
    params = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    jaxpr = jax.make_jaxpr(fn)(params, jax.ShapeDtypeStruct(x, dtype))
    dims = Dimensions()
    args = [dims.param(index, struct) for index, struct in enumerate(params)]
    args.append(dims.fresh(jaxpr.in_avals[-1], from_inputs=True))
    dims.block(args[-1].dims[:1], "it is the batch")
    follow(dims, jaxpr.jaxpr, jaxpr.consts, args)
    return dims


def joined(dims):
    """The classes with more than one dimension of parameters."""
    return {frozenset(each.params) for each in dims.classes() if len(each.params) > 1}


def loop(p, x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ p[0]) @ p[1]), (0, x))[1]


def branches(p, x):
    return jax.lax.cond(x[0, 0] > 0, lambda y: y @ p[0], lambda y: y @ p[1], x)


HIDDEN = {frozenset({(0, 1), (1, 0)})}
MLP = [(4, 6), (6, 5)]

# Name -> (function, shapes of its parameters, the dimensions that are one).
JOINED = {
    "two products": (lambda p, x: x @ p[0] @ p[1], MLP, HIDDEN),
    "elementwise between": (lambda p, x: jax.nn.relu(x @ p[0] * 2) @ p[1], MLP, HIDDEN),
    "jit, remat and casts": (
        lambda p, x: jax.jit(jax.checkpoint(lambda y: y @ p[0].astype("bfloat16")))(x.astype("bfloat16")) @ p[1],
        MLP,
        HIDDEN,
    ),
    "transposed": (lambda p, x: x @ p[0].T @ p[1].T, [(6, 4), (5, 6)], {frozenset({(0, 0), (1, 1)})}),
    "a bias": (lambda p, x: x @ p[0] + p[1], [(4, 6), (6,)], HIDDEN),
    "a bias of both dimensions": (lambda p, x: x @ p[0] + p[1], [(4, 6), (1, 6)], {frozenset({(0, 1), (1, 1)})}),
    "kernels that are added": (
        lambda p, x: x @ (p[0] + p[1] @ p[2]),
        [(4, 6), (4, 2), (2, 6)],
        {frozenset({(0, 0), (1, 0)}), frozenset({(1, 1), (2, 0)}), frozenset({(0, 1), (2, 1)})},
    ),
    "a reshape into heads": (lambda p, x: (x @ p[0]).reshape(2, 3, 2) * p[1][:, None], [(4, 6), (3,)], HIDDEN),
    "not the other factor": (lambda p, x: (x @ p[0]).reshape(2, 3, 2) * p[1], [(4, 6), (2,)], set()),
    "a merge of heads": (
        lambda p, x: jnp.einsum("bi,ihd->bhd", x, p[0]).reshape(2, 6) @ p[1],
        [(4, 3, 2), (6, 5)],
        HIDDEN,
    ),
    "a lookup": (lambda p, x: jnp.take(p[0], x, 0) @ p[1], [(9, 6), (6, 5)], HIDDEN),
    "a concatenation of others": (lambda p, x: jnp.concatenate([x @ p[0], x @ p[0]], 0) @ p[1], MLP, HIDDEN),
    "not along its axis": (lambda p, x: jnp.concatenate([x @ p[0], x], 1) @ p[1], [(4, 6), (10, 5)], set()),
    "not through a slice": (lambda p, x: (x @ p[0])[:, :3] @ p[1], [(4, 6), (3, 5)], set()),
    "not through a sort": (lambda p, x: jnp.sort(x @ p[0], 1) @ p[1], MLP, set()),
    "not through a running sum": (lambda p, x: jnp.cumsum(x @ p[0], 1) @ p[1], MLP, set()),
    "not through what is not known": (
        lambda p, x: jnp.linalg.cholesky((x @ p[0]).T @ (x @ p[0])) @ p[1],
        MLP,
        set(),
    ),
    "a slice of the others": (lambda p, x: (x @ p[0])[:1] @ p[1], MLP, HIDDEN),
    "a part that is written": (
        lambda p, x: (x @ p[0]).at[0].set(p[2]) @ p[1],
        [*MLP, (6,)],
        {frozenset({*next(iter(HIDDEN)), (2, 0)})},
    ),
    "a loop": (loop, [(4, 6), (6, 4)], {*HIDDEN, frozenset({(0, 0), (1, 1)})}),
    "stacked, in a scan": (
        lambda p, x: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w[0]) @ w[1], None), x, (p[0], p[1]))[0],
        [(3, 4, 6), (3, 6, 4)],
        {frozenset({(0, 2), (1, 1)}), frozenset({(0, 1), (1, 2)})},
    ),
    "branches": (branches, [(4, 6), (4, 6)], {frozenset({(0, 0), (1, 0)}), frozenset({(0, 1), (1, 1)})}),
    "convolutions": (
        lambda p, x: jax.lax.conv(jax.lax.conv(x, p[0], (1, 1), "SAME"), p[1], (1, 1), "SAME"),
        [(6, 4, 3, 3), (5, 6, 3, 3)],
        {frozenset({(0, 0), (1, 1)})},
        (2, 4, 8, 8),
    ),
    "a square kernel that is carried": (lambda p, x: jnp.tanh(x @ p[0]) + x, [(4, 4)], {frozenset({(0, 0), (0, 1)})}),
}


@pytest.mark.parametrize("name", JOINED)
def test_dimensions_that_are_one(name):
    fn, shapes, expected, *x = JOINED[name]
    dims = followed(fn, shapes, *x, dtype="int32" if name == "a lookup" else "float32")
    assert joined(dims) == expected


def exchanges_of(dims, param, position):
    (found,) = [each for each in dims.classes() if (param, position) in each.params]
    return sorted(exchange.bytes - LATENCY_BYTES for exchange in found.exchanges)


def test_what_a_product_exchanges():
    """Forward the output of the second, whose sum it is; backward the input of the first, if a gradient flows into it."""
    output, flowing = 4 * 2 * 5, 4 * 2 * 4
    assert exchanges_of(followed(lambda p, x: x @ p[0] @ p[1], MLP), 0, 1) == [output]
    with_more = followed(lambda p, x: x * p[2] @ p[0] @ p[1], [*MLP, (4,)])
    assert exchanges_of(with_more, 0, 1) == sorted([output, flowing])


def test_what_a_scan_exchanges_is_exchanged_at_every_step():
    dims = followed(
        lambda p, x: jax.lax.scan(lambda c, w: (c @ w[0] @ w[1], None), x, (p[0], p[1]))[0], [(3, 4, 6), (3, 6, 4)]
    )
    (hidden,) = [each for each in dims.classes() if (0, 2) in each.params]
    assert hidden.moved == 3 * (2 * 4 * 2 * 4 + 2 * LATENCY_BYTES)


BLOCKED = {
    "the batch": (lambda p, x: x + p[0], [(2, 1)], (0, 0), "batch"),
    "what attention sums over": (
        lambda p, x: jnp.einsum("bi,ih->bh", x, p[0]) @ jnp.einsum("bi,ih->bh", x, p[1]).T,
        [(4, 6), (4, 6)],
        (0, 1),
        "two activations",
    ),
    "what a loop runs over": (
        lambda p, x: jax.lax.scan(lambda c, w: (c @ w, None), x, p[0])[0],
        [(3, 4, 4)],
        (0, 0),
        "a loop runs over it",
    ),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_dimensions_that_cannot_be_split(name):
    fn, shapes, place, text = BLOCKED[name]
    (found,) = [each for each in followed(fn, shapes).classes() if place in each.params]
    assert text in found.blocked


def test_what_an_operation_does_with_a_dimension():
    dims = followed(lambda p, x: jnp.take(p[0], x, 0) @ p[1] @ p[2], [(9, 4), (4, 6), (6, 5)], dtype="int32")
    assert dims.roles(0, 0) == {"looked up"} and dims.roles(0, 1) == {"kept"}
    assert dims.roles(1, 0) == {"summed"} and dims.roles(1, 1) == {"kept"}


def test_sizes_that_a_reshape_cuts_at():
    dims = followed(lambda p, x: (x @ p[0]).reshape(2, 3, 2), [(4, 6)])
    (found,) = [each for each in dims.classes() if (0, 1) in each.params]
    assert found.sizes == {6, 3}


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 6), (2, 3, 2), [([0], [0]), ([1], [1, 2])]),
        ((2, 3, 2), (6, 2), [([0, 1], [0]), ([2], [1])]),
        ((4, 6), (8, 3), [([0, 1], [0, 1])]),
        ((1, 4), (4, 1, 1), [([1], [0])]),
        ((), (1,), []),
    ],
)
def test_reshape_groups(before, after, groups):
    assert reshape_groups(before, after) == groups
