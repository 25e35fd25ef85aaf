"""Low precision and matmul precision, a line per function, and how close the served file must come to jitted JAX.

Both are compiled by XLA, TensorFlow's copy and JAX's, whose fusions differ: an intermediate that one rounds to 16 bits
stays in 32 in the other. The unit in the last place is 2^-8 for bfloat16, 2^-11 for float16, 2^-24 for float32 (relative to
the largest value), and errors of the layers of a stack add.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jax2tf import linear_algebra_cases as linear_algebra


class Row(NamedTuple):
    """A function of one array, what it takes, and the largest difference relative to the largest value."""

    what: str
    fn: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: str
    tolerance: float


def dense_stack(x, layers=4):
    for index in range(layers):
        w = jax.random.normal(jax.random.key(index), (x.shape[-1], x.shape[-1])) / np.sqrt(x.shape[-1])
        x = jnp.tanh(x @ w.astype(x.dtype))
    return x


def conv_stack(x, layers=3):
    for index in range(layers):
        w = jax.random.normal(jax.random.key(index), (3, 3, x.shape[-1], x.shape[-1])) / (3 * np.sqrt(x.shape[-1]))
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(lax.conv_general_dilated(x, w.astype(x.dtype), (1, 1), "SAME", dimension_numbers=numbers))
    return x


def matmul(precision):
    return lambda x: jnp.matmul(x, x.swapaxes(-1, -2), precision=precision)


def attention(x):
    return jax.nn.dot_product_attention(x, x, x)


DENSE, CONV = (8, 64), (2, 12, 12, 8)
ROWS = {
    "dense_f32": Row("4 matmuls of 64 and tanh", dense_stack, DENSE, "float32", 2e-6),
    "dense_bf16": Row("4 matmuls of 64 and tanh", dense_stack, DENSE, "bfloat16", 2e-2),
    "dense_f16": Row("4 matmuls of 64 and tanh", dense_stack, DENSE, "float16", 3e-3),
    "conv_f32": Row("3 convolutions of 8 channels and relu", conv_stack, CONV, "float32", 2e-6),
    "conv_bf16": Row("3 convolutions of 8 channels and relu", conv_stack, CONV, "bfloat16", 2e-2),
    "conv_f16": Row("3 convolutions of 8 channels and relu", conv_stack, CONV, "float16", 3e-3),
    "attention_f32": Row("attention, 4 heads of 8", attention, (2, 6, 4, 8), "float32", 2e-6),
    "attention_bf16": Row("attention, 4 heads of 8", attention, (2, 6, 4, 8), "bfloat16", 2e-2),
    "matmul_default": Row("matmul of 64, `precision=None`", matmul(None), DENSE, "float32", 1e-6),
    "matmul_high": Row("matmul of 64, `precision='high'`", matmul("high"), DENSE, "float32", 1e-6),
    "matmul_highest": Row("matmul of 64, `precision='highest'`", matmul("highest"), DENSE, "float32", 1e-6),
    "softmax_f16": Row("softmax of 64", lambda x: jax.nn.softmax(x), DENSE, "float16", 2e-3),
}

#: What a SavedModel with several functions of one argument gives, and their gradients, in a process without JAX.
SERVE = """
    import sys, numpy as np, tensorflow as tf
    folder, returned = sys.argv[1], {}
    module, given = tf.saved_model.load(folder + "/saved"), np.load(folder + "/given.npz")
    for name in given.files:
        fn = getattr(module, name)
        x = tf.constant(given[name])
        with tf.GradientTape() as tape:
            tape.watch(x)
            outs = tf.nest.flatten(fn(x))
            floats = [o for o in outs if o.dtype.is_floating]
            scalar = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in floats]) if floats else None
        for index, out in enumerate(outs):
            returned[f"{name}/{index}"] = out.numpy()
        if floats and "gradients" in sys.argv:
            returned[f"{name}/gradient"] = tape.gradient(scalar, x).numpy()
    assert not any(module.split(".")[0] in ("jax", "jaxlib", "jaxbridge") for module in sys.modules)
    np.savez(folder + "/outputs.npz", **returned)
"""


def argument(row: Row) -> np.ndarray:
    """A float32 array whose values are exact in the row's dtype."""
    return np.random.default_rng(0).normal(size=row.shape).astype(jnp.dtype(row.dtype)).astype("float32")


def in_dtype(row: Row) -> Callable[..., Any]:
    """The function as one of float32 arrays: numpy files do not hold bfloat16."""
    return lambda x: row.fn(x.astype(row.dtype)).astype("float32")


difference = linear_algebra.difference
