"""Gradients of higher order that survive `tf.saved_model.save`.

TensorFlow saves custom gradients of the functions that are in the exported graph, and a gradient's own gradient is in none
of them. So while a function is traced inside `keep_gradients`, its backward pass is a function too, and whoever saves puts
these functions on the saved object.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from jaxbridge.jax2tf.call_module import tf_dtype, tf_shape

if TYPE_CHECKING:
    from jaxbridge.jax2tf.gradients import Differentiable


class _Keeping(NamedTuple):
    functions: list[Any]
    orders: int


_keeping: contextvars.ContextVar[_Keeping | None] = contextvars.ContextVar("keeping", default=None)


@contextlib.contextmanager
def keep_gradients(order: int) -> Iterator[list[Any]]:
    """Returns a context in which converted functions are traced so that gradients up to an order can be saved.

    Args:
        order: 1 is what TensorFlow saves by itself.

    Returns:
        The list of functions to put on the saved object; it fills while functions are traced in the context.
    """
    functions: list[Any] = []
    with _in_effect(_Keeping(functions, order - 1)):
        yield functions


def kept_pullback(function: Differentiable) -> Any:
    """Returns the backward pass of a function as a concrete TensorFlow function that will be saved; None outside."""
    keeping = _keeping.get()
    if keeping is None or keeping.orders < 1:
        return None
    pullback = function.pullback
    signature = [tf.TensorSpec(tf_shape(struct.shape), tf_dtype(struct.dtype)) for struct in pullback.structs]
    with _in_effect(keeping._replace(orders=keeping.orders - 1)), tf.init_scope():
        traced = tf.function(lambda *values: pullback(values), input_signature=signature, autograph=False)
        keeping.functions.append(traced.get_concrete_function())
    return keeping.functions[-1]


@contextlib.contextmanager
def _in_effect(keeping: _Keeping) -> Iterator[None]:
    token = _keeping.set(keeping)
    try:
        yield
    finally:
        _keeping.reset(token)
