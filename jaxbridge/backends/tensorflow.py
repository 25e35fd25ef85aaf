"""Keras on TensorFlow."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxbridge._optional import require
from jaxbridge.backends.base import Backend, Lowering, PureFunction
from jaxbridge.core.jaxprs import warn_closed_over
from jaxbridge.core.ladder import unknown_shape_error
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import SignatureError, StructureError, UnsupportedOperationError

require("tensorflow", "A jaxbridge layer on Keras' TensorFlow backend")

import tensorflow as tf  # noqa: E402

from jaxbridge.jax2tf import _tf_private  # noqa: E402
from jaxbridge.jax2tf.call_module import tf_dtype  # noqa: E402
from jaxbridge.jax2tf.convert import Conversion  # noqa: E402
from jaxbridge.jax2tf.lowering import LoweringOptions  # noqa: E402
from jaxbridge.jax2tf.platforms import default_platforms  # noqa: E402


class TensorFlowBackend(Backend):
    concrete_shapes = False
    traces_with_jax = False
    seed_dtype = "int64"

    def lift(
        self,
        fn: PureFunction,
        variables: tuple[list[Any], list[Any], Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> PureFunction:
        options = LoweringOptions(lowering.platforms or default_platforms(), target=lowering.target)
        return _Lifted(fn, variables, inputs, options)

    def build_scope(self) -> contextlib.AbstractContextManager[Any]:
        return tf.init_scope()

    def seed_words(self, seed: Any) -> Any:
        return tf.cast(seed, tf.uint32)

    def static_flag(self, flag: Any) -> bool | None:
        value = tf.get_static_value(flag)
        return None if value is None else bool(value)

    def gradient(self, fn: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
        values = [tf.convert_to_tensor(value) for value in values]
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = fn(values)
        return tape.gradient(result, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def serving_function(
        self,
        fn: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, list[Any]]],
        variables: Sequence[Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> Callable[[list[Any], list[Any]], tuple[Any, list[Any]]]:
        return fn

    def serving_platforms(self) -> tuple[str, ...]:
        return default_platforms()

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        return tuple(tensor.shape.as_list())


BACKEND = TensorFlowBackend()


class _Lifted:
    """A pure function on tensors: added to the graph that is being traced, or run as a `tf.function` of its own."""

    def __init__(self, fn: PureFunction, variables: Any, inputs: Signature, options: LoweringOptions):
        self._fn, self._options = fn, options
        self._fixed, self._treedef = _fixed_signature(variables, inputs)
        self._inputs = inputs
        self._conversion = self._convert(inputs)
        self._static: dict[tuple[tuple[int, ...], ...], Conversion] | None = None
        try:
            traced = self._conversion.function.traced  # now, so that a failure is known before a call
        except (SignatureError, StructureError, UnsupportedOperationError):  # nothing that other sizes would mend
            raise
        except Exception as error:  # whatever the user's function raises at symbolic sizes
            if not inputs.symbols():
                raise
            self._failure = error
            self._static = {}
        else:
            warn_closed_over(traced.jaxpr)
        self._functions: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def _convert(self, inputs: Signature) -> Conversion:
        shapes, dtypes = self._fixed
        signature = Signature(
            (*shapes, *inputs.shapes), (*dtypes, *inputs.dtypes), inputs.constraints, inputs.declared, len(shapes)
        )
        return Conversion(self._fn, self._treedef, signature, self._options)

    def __call__(self, params: list[Any], state: list[Any], seeds: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
        arrays = jax.tree.leaves((params, state, seeds, leaves))
        dtypes = (*self._fixed[1], *self._inputs.dtypes)
        tensors = [_as_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        if self._inputs.declared:
            given = [tensor.shape for tensor in tensors[len(tensors) - len(leaves) :]]
            if all(shape.is_fully_defined() for shape in given):  # else the graph holds assertions
                self._inputs.check([shape.as_list() for shape in given])
        conversion = self._conversion if self._static is None else self._at_static_sizes(leaves)
        if tf.config.functions_run_eagerly():
            return conversion(tensors, True)
        recorded = _tf_private.is_recorded(tensors)
        if tf.executing_eagerly():
            return self._compiled(conversion, tensors, recorded)
        if not recorded:
            return conversion(tensors, True)
        # In a training step a call of the function costs the graph two ops, where what is in it is more than a hundred:
        # of 64 equal blocks the first step takes 3.4 s instead of 6.8.
        return conversion.around(tensors, lambda checked: self._compiled(conversion, checked, True))

    def _compiled(self, conversion: Conversion, tensors: list[Any], recorded: bool) -> Any:
        """Runs the conversion as a `tf.function`: one with residuals where a tape records, one without elsewhere."""
        key = (conversion, recorded)
        with self._lock:
            if key not in self._functions:
                signature = [
                    tf.TensorSpec(shape, tf_dtype(np.dtype(dtype)))
                    for shape, dtype in zip(
                        conversion.signature.keras_shapes(), conversion.signature.dtypes, strict=True
                    )
                ]
                self._functions[key] = _compiled_function(lambda *args: conversion(args, True, recorded), signature)
            function, treedef = self._functions[key]
        return jax.tree.unflatten(treedef, _tf_private.call_flat(function, tensors))

    def _at_static_sizes(self, leaves: list[Any]) -> Conversion:
        """Returns the conversion for exactly these sizes, for functions that cannot be traced with symbols."""
        assert self._static is not None
        shapes = tuple(tuple(leaf.shape.as_list()) for leaf in leaves)
        if any(None in shape for shape in shapes):
            raise unknown_shape_error(self._failure, self._inputs) from self._failure
        self._inputs.check(shapes)
        if not self._static:
            warnings.warn(
                f"A function cannot be traced for unknown sizes ({type(self._failure).__name__}: "
                f"{str(self._failure).splitlines()[0]}), so it is converted anew for every new input shape. Say what is "
                "known of the sizes with `polymorphic_shapes`, or make them fixed with `keras.Input(..., batch_size=)`.",
                stacklevel=2,
            )
        if shapes not in self._static:
            self._static[shapes] = self._convert(self._inputs.at_sizes(shapes))
        return self._static[shapes]


def _compiled_function(fn: Callable[..., Any], signature: Sequence[Any]) -> tuple[Any, Any]:
    """Returns `fn` as a concrete function of flat outputs, and their structure: TensorFlow knows only some containers."""
    treedefs: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        leaves, treedef = jax.tree.flatten(fn(*args))
        treedefs[:] = [treedef]
        return leaves

    # Not in the graph or on the device of whoever is the first to call it.
    with tf.init_scope(), tf.device(None):
        function = tf.function(flat, input_signature=signature, autograph=False).get_concrete_function()
    return function, treedefs[0]


def _as_tensor(array: Any, dtype: str) -> Any:
    """Returns an array as a tensor of the dtype that the function sees: JAX makes 64-bit integers 32-bit ones."""
    # In the order of what an eager call has most; `value()` takes 12 us, `tf.convert_to_tensor` of a variable 17. The names
    # of dtypes are compared, since making a dtype takes longer than all of it.
    if isinstance(array, tf.Variable):
        tensor = array.value()
    else:
        tensor = array if isinstance(array, tf.Tensor) else tf.convert_to_tensor(array)
    return tensor if tensor.dtype.name == dtype else tf.cast(tensor, tf_dtype(np.dtype(dtype)))


def _fixed_signature(variables: Any, inputs: Signature) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], Any]:
    """Returns shapes and dtypes of params, state and seeds, and the treedef of all four arguments."""
    leaves = jax.tree.leaves(variables)
    shapes = tuple(f"({', '.join(map(str, leaf.shape))}{',' if len(leaf.shape) == 1 else ''})" for leaf in leaves)
    dtypes = tuple(tf.as_dtype(leaf.dtype).name for leaf in leaves)
    return (shapes, dtypes), jax.tree.structure(((*variables, [0] * len(inputs.shapes)), {}))
