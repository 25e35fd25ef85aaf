"""Functions to convert, a line per function: flat arrays in, a pytree out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Case(NamedTuple):
    """A function, the shape texts of its arguments ("b" is 3 where sizes are known) and what it takes."""

    fn: Callable[..., Any]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...] = ()


BATCH = 3


def arguments(case: Case, batch: int = BATCH, seed: int = 0) -> list[np.ndarray]:
    """Random arguments of a case."""
    rng = np.random.default_rng(seed)
    made = []
    for index, text in enumerate(case.shapes):
        dtype = np.dtype(case.dtypes[index] if case.dtypes else "float32")
        shape = [batch if size == "b" else int(size) for size in text.split(",") if size]
        if dtype.kind == "f":
            made.append(rng.normal(size=shape).astype(dtype))
        elif dtype.kind == "c":
            made.append((rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype))
        else:
            made.append(rng.integers(0, 4, size=shape).astype(dtype))
    return made


def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def conv(x, w):
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def avg_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4


def random_bits(seed, x):
    key = jax.random.wrap_key_data(seed)
    return jax.random.bits(key, x.shape), jax.random.normal(jax.random.fold_in(key, 7), x.shape)


def dropout(seed, x):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(seed), 0.5, x.shape)
    return jnp.where(keep, x / 0.5, 0)


def layer_norm(x, scale):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * scale


def rnn(w, x):
    def step(carry, _):
        carry = jnp.tanh(carry @ w)
        return carry, carry.sum(-1)

    return lax.scan(step, x, None, length=4)


def branches(w, x):
    return lax.cond(w.sum() > 0, lambda: jnp.tanh(x @ w), lambda: x @ w * 2.0)


FORWARD = {
    "matmul_tanh": Case(lambda w, x: jnp.tanh(x @ w), ("4,5", "b,4")),
    "gelu_exact": Case(lambda x: jax.nn.gelu(x, approximate=False), ("b,7",)),
    "gelu_tanh": Case(lambda x: jax.nn.gelu(x), ("b,7",)),
    "softmax": Case(lambda x: jax.nn.softmax(x), ("b,7",)),
    "logsumexp": Case(lambda x: jax.nn.logsumexp(x, axis=-1), ("b,7",)),
    "top_k": Case(lambda x: lax.top_k(x, 3), ("b,7",)),
    "sort": Case(lambda x: jnp.sort(x, axis=-1), ("b,7",)),
    "sort_batch": Case(lambda x: jnp.sort(x, axis=0), ("b,7",)),
    "argsort": Case(lambda x: jnp.argsort(x, axis=-1), ("b,7",)),
    "erf_inv": Case(lambda x: jax.scipy.special.erfinv(jnp.tanh(x) * 0.9), ("b,7",)),
    "asinh_sinh": Case(lambda x: (jnp.asinh(x), jnp.sinh(x), jnp.tan(x)), ("b,7",)),
    "lgamma": Case(lambda x: (jax.lax.lgamma(jnp.abs(x) + 1), jax.lax.digamma(jnp.abs(x) + 1)), ("b,7",)),
    "conv": Case(conv, ("b,8,8,2", "3,3,2,4")),
    "max_pool": Case(max_pool, ("b,8,8,2",)),
    "avg_pool": Case(avg_pool, ("b,7,7,2",)),
    "gather": Case(lambda t, i: t[i], ("5,3", "b,2"), ("float32", "int32")),
    "scatter_add": Case(lambda t, i, x: t.at[i].add(x), ("5,3", "b", "b,3"), ("float32", "int32", "float32")),
    "take_along_axis": Case(lambda x, i: jnp.take_along_axis(x, i, axis=1), ("b,5", "b,2"), ("float32", "int32")),
    "dynamic_slice": Case(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, axis=1), ("b,6", ""), ("float32", "int32")),
    "cumsum": Case(lambda x: jnp.cumsum(x, axis=1), ("b,7",)),
    "cumsum_batch": Case(lambda x: jnp.cumsum(x, axis=0), ("b,7",)),
    "fft": Case(lambda x: jnp.fft.rfft(x), ("b,8",)),
    "attention": Case(attention, ("b,6,2,4", "b,6,2,4", "b,6,2,4")),
    "random": Case(random_bits, ("2", "b,5"), ("uint32", "float32")),
    "dropout": Case(dropout, ("2", "b,5"), ("uint32", "float32")),
    "layer_norm": Case(layer_norm, ("b,6", "6")),
    "one_hot": Case(lambda i: jax.nn.one_hot(i, 4), ("b",), ("int32",)),
    "reshape": Case(lambda x: x.reshape(-1, 2).sum(0), ("b,6",)),
    "concatenate": Case(lambda x, y: jnp.concatenate([x, y]), ("b,3", "2,3")),
    "sizes": Case(lambda x: x.sum(0) / x.shape[0], ("b,3",)),
    "einsum": Case(lambda x, w: jnp.einsum("bij,jk->bik", x, w), ("b,2,3", "3,4")),
    "vmap": Case(lambda w, x: jax.vmap(lambda row: jnp.tanh(w @ row))(x), ("4,4", "b,4")),
    "scan": Case(rnn, ("3,3", "b,3")),
    "cond": Case(branches, ("3,3", "b,3")),
    "while": Case(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, jnp.abs(x) + 1), ("b,3",)),
    "fori_symbolic": Case(
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + jnp.asarray(x)[i], jnp.asarray(x)[0]), ("b,3",)
    ),
    "argmax": Case(lambda x: jnp.argmax(x, -1), ("b,7",)),
    "integers": Case(lambda x: (x // 3, x % 3, x << 1, ~x), ("b,7",), ("int32",)),
    "rng_bit_generator": Case(
        lambda s, x: lax.rng_bit_generator(jnp.concatenate([s, s]), x.shape)[1], ("2", "3,5"), ("uint32", "float32")
    ),
}


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct, -1, 1) * jnp.cos(x) * 2,))


@jax.custom_jvp
def smooth(x):
    return jnp.abs(x)


smooth.defjvp(lambda primals, tangents: (smooth(primals[0]), jnp.tanh(primals[0]) * tangents[0]))


@jax.custom_vjp
def while_inside(x):
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x**2 + 1)


while_inside.defvjp(lambda x: (while_inside(x), x), lambda x, ct: (ct * jnp.cos(x),))


def mlp(w1, w2, x):
    return jnp.tanh(jnp.tanh(x @ w1) @ w2)


MLP = ("3,4", "4,3", "b,3")
DOTS = jax.checkpoint_policies.dots_saveable

#: Functions of real arrays with a gradient; all outputs enter the loss.
GRADIENT = {
    "mlp": Case(mlp, MLP),
    "custom_vjp": Case(clipped, ("b,3",)),
    "custom_jvp": Case(smooth, ("b,3",)),
    "while_in_custom_vjp": Case(while_inside, ("b,3",)),
    "scan": Case(rnn, ("3,3", "b,3")),
    "cond": Case(branches, ("3,3", "b,3")),
    "remat": Case(jax.checkpoint(mlp), MLP),
    "remat_dots": Case(jax.checkpoint(mlp, policy=DOTS), MLP),
    "remat_dropout": Case(
        jax.checkpoint(lambda seed, w, x: dropout(seed, jnp.tanh(x @ w))),
        ("2", "3,3", "b,3"),
        ("uint32", "float32", "float32"),
    ),
    "stop_gradient": Case(lambda x, y: lax.stop_gradient(jnp.sin(x)) * jnp.cos(x) * y, ("b,3", "b,3")),
    "unused": Case(lambda x, unused: jnp.sin(x), ("b,3", "2,2")),
    "integer_input": Case(lambda t, i: jnp.sin(t)[i] ** 2, ("5,3", "b"), ("float32", "int32")),
    "integer_output": Case(lambda x: (jnp.sin(x), jnp.argmax(x, -1), x > 0), ("b,3",)),
    "gelu_exact": Case(lambda x: jax.nn.gelu(x, approximate=False), ("b,7",)),
    "conv": Case(lambda x, w: jnp.tanh(conv(x, w)), ("b,4,4,2", "3,3,2,2")),
    "top_k": Case(lambda x: lax.top_k(jnp.sin(x), 2), ("b,5",)),
    "reshape": Case(lambda w, x: jnp.sin(x.reshape(-1, 3) @ w).reshape(x.shape), ("3,3", "b,2,3")),
    "sizes": Case(lambda x: jnp.sin(x).sum(0) / x.shape[0], ("b,3",)),
    "mean_over_batch": Case(lambda x: x.mean(0), ("b,3",)),
    "first_row": Case(lambda x: jnp.sin(x)[0], ("b,3",)),
    "constant_output": Case(lambda x: (jnp.ones(3), jnp.sin(x)), ("b,3",)),
    "input_output": Case(lambda x: (x, jnp.sin(x), x), ("b,3",)),
}
