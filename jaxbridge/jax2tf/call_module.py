"""A lowered module as a TensorFlow op."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jaxbridge.core import records
from jaxbridge.errors import ConversionError, UnsupportedOperationError
from jaxbridge.jax2tf import _tf_private
from jaxbridge.jax2tf.lowering import LoweredModule
from jaxbridge.jax2tf.statistics import count

#: Constraints between sizes are checked by `convert` itself, in a way that allows a batch of 0 rows; JAX's own
#: assertions in the module say that every symbol is at least 1.
_NO_SHAPE_ASSERTIONS = "shape_assertions"

#: The attribute of the op that says, as JSON, how the layers inside want to be split over devices. TensorFlow keeps attributes
#: that begin with an underscore, whoever saves, loads and saves again.
RECORD_ATTRIBUTE = "_jaxbridge_sharding"


def emit(module: LoweredModule, args: Sequence[Any], may_be_pruned: bool = False) -> list[Any]:
    """Adds the op that runs `module` and returns one tensor per result.

    Args:
        module: the lowered function.
        args: a tensor per argument of the function, the unused ones too.
        may_be_pruned: whether a graph may leave it out where nobody uses its results. TensorFlow runs every XlaCallModule,
            which is registered as stateful, but no function that is called statelessly.
    """
    if may_be_pruned and not tf.executing_eagerly():
        return _called_statelessly(_function_of(module), args)
    count("emissions")
    attributes: dict[str, Any] = {}
    if module.calling_convention >= 10:
        attributes["use_shardy_partitioner"] = module.has_shardings
    with dtensors_explained():
        outs = _call(module, args, attributes)
    if found := records.in_effect():
        _tf_private.set_attribute(outs, RECORD_ATTRIBUTE, records.to_json(found))
    return outs


class SharedFunctions:
    """Runs modules as functions that are made once, for calls in all threads and graphs.

    TensorFlow must not differentiate one: it makes the gradient when somebody asks first, without a lock, and threads that
    ask together fail ("'NoneType' object is not iterable", TensorFlow 2.21: `FuncGraph.as_default` resets what another
    thread is about to use). So they are called like ops that have no gradient.
    """

    def __init__(self):
        self._made: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __call__(self, module: LoweredModule, args: Sequence[Any], may_be_pruned: bool = True) -> list[Any]:
        key = (module, tuple(records.in_effect()))  # the op inside has the records of the layers that share it
        with self._lock:
            if key not in self._made:
                # Not in the graph or on the device of whoever is the first to call it.
                with tf.init_scope(), tf.device(None):
                    self._made[key] = _function_of(module)
        return _called_statelessly(self._made[key], args)


def _function_of(module: LoweredModule) -> Any:
    specs = [tf.TensorSpec(tf_shape(aval.shape), tf_dtype(aval.dtype)) for aval in module.in_avals]
    run = lambda *args: emit(module, args)
    return tf.function(run, input_signature=specs, autograph=False).get_concrete_function()


def _called_statelessly(function: Any, args: Sequence[Any]) -> list[Any]:
    """Calls a concrete function that is known to have no effects, as if it had no gradient."""
    with dtensors_explained(), _tf_private.stop_recording():
        if tf.executing_eagerly():
            return list(_tf_private.call_flat(function, args))
        with tf.compat.v1.get_default_graph().gradient_override_map({"PartitionedCall": _NO_GRADIENT}):
            outs = tf.raw_ops.PartitionedCall(args=list(args), Tout=[out.dtype for out in function.outputs], f=function)
    for out, inside in zip(outs, function.outputs, strict=True):
        out.set_shape(inside.shape)
    return list(outs)


#: The gradient of calls that must not be differentiated: a property of the op, where `tf.stop_gradient` would be an op for
#: each of its outputs, which add a third to the first step of a model of 64 equal blocks.
_NO_GRADIENT = "JaxbridgeNoGradient"


@tf.RegisterGradient(_NO_GRADIENT)
def _no_gradient(op: Any, *cotangents: Any) -> list[None]:
    # TensorFlow traces it without an op when it saves a graph.
    return [None] * len(cotangents if op is None else op.inputs)


def _call(module: LoweredModule, args: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    return _tf_private.call_module(
        [args[index] for index in module.kept],
        version=module.calling_convention,
        module=module.serialized,
        Tout=[tf_dtype(aval.dtype) for aval in module.out_avals],
        Sout=[tf_shape(aval.shape) for aval in module.out_avals],
        platforms=[platform.upper() for platform in module.platforms],
        function_list=[],
        has_token_input_output=False,
        disabled_checks=[*module.disabled_checks, _NO_SHAPE_ASSERTIONS],
        **attributes,
    )


@contextlib.contextmanager
def dtensors_explained() -> Iterator[None]:
    """Returns a context in which TensorFlow's errors for DTensors in a converted function say what to do."""
    try:
        yield
    except (tf.errors.UnimplementedError, tf.errors.UnknownError) as error:
        if "DTensor" not in str(error) and "layout propagation" not in str(error):
            raise
        raise UnsupportedOperationError(
            "A converted function was called with DTensors, which TensorFlow cannot split it over. They are for storage: bring "
            "them to one device first (`tf.experimental.dtensor.relayout` to a replicated layout, outside of a "
            "`tf.function`), or run the function in JAX (`jaxbridge.load_jax`)."
        ) from error


def tf_shape(shape: Sequence[Any]) -> tuple[int | None, ...]:
    """Returns a JAX shape for TensorFlow: None where a size is symbolic."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def tf_dtype(dtype: Any) -> tf.DType:
    """Returns the TensorFlow dtype of a JAX dtype; cotangents of integers (float0) are bool, as JAX lowers them."""
    return tf.as_dtype(np.dtype(bool) if dtype == jax.dtypes.float0 else np.dtype(dtype))


def jax_dtype(dtype: tf.DType) -> np.dtype:
    """Returns the dtype that JAX gives values of a TensorFlow dtype: 64-bit types are narrowed unless x64 is enabled."""
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    if not (jnp.issubdtype(numpy_dtype, jnp.number) or numpy_dtype is np.bool_):
        raise ConversionError(f"JAX has no arrays of dtype {tf.as_dtype(dtype).name}.")
    return np.dtype(jax.dtypes.canonicalize_dtype(numpy_dtype))
