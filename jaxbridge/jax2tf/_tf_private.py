"""What this package needs of TensorFlow and has no public name (tried with TensorFlow 2.18 and 2.21).

The XlaCallModule op has no Python function in the public API; `jax.experimental.jax2tf` reaches it in the same way.
`tests/jax2tf/test_private_apis.py` fails when the names below move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.mlir.stablehlo import stablehlo as _stablehlo
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.python.eager import record as _record


def call_module(args: Sequence[Any], **attributes: Any) -> list[Any]:
    """Adds an XlaCallModule op and returns its outputs."""
    outputs: Any = _xla.call_module(tuple(args), **attributes)
    return list(outputs)


def set_attribute(outputs: Sequence[Any], name: str, text: str) -> None:
    """Sets a string attribute of the op that these are the outputs of; without effect outside of a graph.

    The op has no public way to be given one after it was made, and its Python function takes only those it knows.
    """
    if outputs and not tf.executing_eagerly():
        outputs[0].op._set_attr(name, tf.compat.v1.AttrValue(s=text.encode()))


def maximum_calling_convention() -> int:
    """Returns the newest calling convention of `jax.export` that XlaCallModule understands."""
    return _xla.call_module_maximum_supported_version()


def read_version() -> str:
    """Returns the newest StableHLO version that the installed TensorFlow reads."""
    return _stablehlo.get_current_version()


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Returns whether a gradient tape watches one of these tensors.

    True in eager mode, inside a function with the tape inside, and for what a function captures from under an outer tape;
    False for the arguments of such a function, which are placeholders that no tape has seen.
    """
    return bool(_record.should_record_backprop(list(tensors)))


def may_record() -> bool:
    """Returns whether this thread has a gradient tape (or forward accumulator) that could record what it does now."""
    return _record.could_possibly_record()


def call_flat(function: Any, tensors: Sequence[Any]) -> Any:
    """Runs a concrete function on tensors that fit its signature, and returns its structured outputs.

    Its public call binds the arguments to the signature first, which takes longer than a small layer (with 5 arguments in
    TensorFlow 2.21: 0.29 ms, of a `tf.function` 0.55 ms, this 0.17 ms). Gradients are recorded as in the public call.
    """
    return function._call_flat(list(tensors), function.captured_inputs)


def stop_recording() -> contextlib.AbstractContextManager[None]:
    """Returns a context that no tape of this thread sees; the public `GradientTape.stop_recording` is of one tape."""
    return _record.stop_recording()
