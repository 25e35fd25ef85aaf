"""The other names of `jax.experimental.jax2tf`: two small functions, and what to write instead of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import tensorflow as tf

from jaxbridge.jax2tf.convert import to_tensor

#: Names that are not here -> what to write instead.
REPLACED = {
    "PolyShape": "Write shapes as text: polymorphic_shapes=['(b, ...)'] instead of [PolyShape('b', ...)].",
    "call_tf": "It calls TensorFlow from JAX, which is not what this package does: `jax.experimental.jax2tf.call_tf` "
    "works beside `jaxbridge.jax2tf`.",
    "split_to_logical_devices": "It marked tensors for TensorFlow 1's TPU partitioner. Write "
    "`jax.lax.with_sharding_constraint` in the JAX function instead.",
}


def eval_polymorphic_shape(fun_jax: Callable[..., Any], *, polymorphic_shapes: Any = None) -> Callable[..., Any]:
    """Makes a function that says which shapes `fun_jax` returns for symbolic shapes.

    Args:
        fun_jax: a function from pytrees of arrays to a pytree of arrays.
        polymorphic_shapes: as for `convert`.

    Returns:
        A function of the arguments' `jax.ShapeDtypeStruct`s (or arrays). It returns two pytrees: the
        `jax.ShapeDtypeStruct`s of the results, and their shapes as text, fit to be `polymorphic_shapes` again.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxbridge import jax2tf
        >>> x = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        >>> jax2tf.eval_polymorphic_shape(lambda x: x.reshape(-1), polymorphic_shapes="b, c")(x)[1]
        '(b*c,)'
    """

    def evaluated(*specs: Any) -> tuple[Any, Any]:
        symbolic = jax.export.symbolic_args_specs(specs, polymorphic_shapes)
        results = jax.eval_shape(fun_jax, *symbolic)
        return results, jax.tree.map(lambda result: str(result.shape), results)

    return evaluated


def dtype_of_val(val: Any) -> tf.DType:
    """Returns the dtype that `convert` gives to an argument: JAX's, so 64 bits are 32 unless x64 is enabled.

    Example:
        >>> import tensorflow as tf
        >>> from jaxbridge import jax2tf
        >>> jax2tf.dtype_of_val(tf.constant(1.0, tf.float64))
        tf.float32
    """
    return to_tensor(val, "val").dtype
