"""Keras on TensorFlow."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge._optional import require
from jaxbridge.backends.base import Backend, LiftedFunction, Lowering, PureFunction, check_divisible, check_root
from jaxbridge.core import records
from jaxbridge.core.jaxprs import warn_closed_over
from jaxbridge.core.ladder import FINAL, unknown_shape_error
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import (
    ShardingError,
    UnsupportedBackendError,
)

require("tensorflow", "A jaxbridge layer on Keras' TensorFlow backend")

import tensorflow as tf  # noqa: E402

from jaxbridge.jax2tf import _tf_private  # noqa: E402
from jaxbridge.jax2tf.call_module import SharedFunctions, dtensors_explained, jax_dtype, tf_dtype  # noqa: E402
from jaxbridge.jax2tf.convert import Conversion  # noqa: E402
from jaxbridge.jax2tf.gradients import Differentiable  # noqa: E402
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
    ) -> LiftedFunction:
        options = LoweringOptions(
            lowering.platforms or default_platforms(),
            target=lowering.target,
            nan=lowering.nan or "keep",
            source_info=lowering.source_info,
        )
        return _Lifted(fn, variables, inputs, options)

    def build_scope(self) -> contextlib.AbstractContextManager[Any]:
        return tf.init_scope()

    def seed_words(self, seed: Any) -> Any:
        words = tf.cast(seed, tf.uint32)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return words
        return tf.concat([words, [tf.cast(context.replica_id_in_sync_group, tf.uint32)]], 0)

    def static_flag(self, flag: Any) -> bool | None:
        value = tf.get_static_value(flag)
        return None if value is None else bool(value)

    def gradient(self, fn: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
        values = [tf.convert_to_tensor(value) for value in values]
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = fn(values)
        return tape.gradient(result, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def trace(self, fn: Callable[..., Any], *structs: Any) -> Any:
        raise UnsupportedBackendError(
            "Keras' TensorFlow backend does not split variables over devices (its layouts have no effect), so there is nothing "
            "to decide. Set KERAS_BACKEND=jax; with TensorFlow use tf.distribute, where every replica holds all variables."
        )

    def join_processes(
        self, address: str | None, count: int | None, index: int | None, timeout: int, heartbeat_timeout: int
    ) -> None:
        raise UnsupportedBackendError(
            "`initialize` joins the processes of Keras' JAX backend. With TensorFlow, `MultiWorkerMirroredStrategy` of "
            "`tf.distribute` joins them itself: set TF_CONFIG in each."
        )

    def common_seed(self) -> int:
        raise UnsupportedBackendError(
            "Processes of Keras' TensorFlow backend are those of tf.distribute: seed each alike."
        )

    def axis_size(self, x: Any, axis_name: str) -> int:
        return _replica_context().num_replicas_in_sync

    def all_reduce(self, x: Any, op: str, axis_name: str) -> Any:
        context = _replica_context()
        if op in ("max", "min"):  # tf.distribute has sums and means only
            every = context.all_gather(x[tf.newaxis], 0)
            return tf.reduce_max(every, 0) if op == "max" else tf.reduce_min(every, 0)
        if op == "mean" and x.dtype.is_integer:
            x = tf.cast(x, keras.config.floatx())
        return context.all_reduce(tf.distribute.ReduceOp.MEAN if op == "mean" else tf.distribute.ReduceOp.SUM, x)

    def all_gather(self, x: Any, axis: int, axis_name: str) -> Any:
        return _replica_context().all_gather(x, axis)

    def reduce_scatter(self, x: Any, op: str, axis: int, axis_name: str) -> Any:
        context = _replica_context()
        count = context.num_replicas_in_sync
        check_divisible(x.shape[axis], axis, count, axis_name)
        # tf.distribute has no reduce-scatter: each replica keeps its part of the whole.
        parts = tf.split(self.all_reduce(x, op, axis_name), count, axis)
        return tf.gather(tf.stack(parts), context.replica_id_in_sync_group)

    def broadcast(self, x: Any, root: int, axis_name: str) -> Any:
        context = _replica_context()
        check_root(root, context.num_replicas_in_sync, axis_name)
        is_root = tf.equal(context.replica_id_in_sync_group, root)
        numbers = tf.cast(x, tf.int32) if x.dtype == tf.bool else x
        sent = tf.where(is_root, numbers, tf.zeros_like(numbers))
        return tf.cast(self.all_reduce(sent, "sum", axis_name), x.dtype)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn  # its kernels round alike, called one by one or from a graph

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

    # Distribution. Keras leaves its variables where TensorFlow puts them; DTensor has meshes and layouts.

    distributes = False

    def mesh(self, device_mesh: Any) -> Any:
        devices = [str(device).upper() for device in device_mesh.devices.flat]
        _prepare_devices(devices)
        sizes = list(zip(device_mesh.axis_names, device_mesh.shape, strict=True))
        return tf.experimental.dtensor.create_mesh(sizes, devices=devices)

    def mesh_parts(self, mesh: Any) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
        names = [name.rpartition("device:")[2].lower() for name in mesh.local_devices()]
        return tuple(mesh.shape()), tuple(mesh.dim_names), names

    def layout(self, mesh: Any, axes: tuple[Any, ...]) -> Any:
        product = [axis for axis in axes if isinstance(axis, tuple)]
        if product:
            raise ShardingError(f"DTensor cannot split one dimension over several axes, which {product[0]!r} asks for.")
        dtensor = tf.experimental.dtensor
        return dtensor.Layout([dtensor.UNSHARDED if axis is None else axis for axis in axes], mesh)

    def layout_parts(self, layout: Any) -> tuple[Any, tuple[Any, ...]]:
        if not isinstance(layout, tf.experimental.dtensor.Layout):
            raise ShardingError(f"{layout!r} is no tf.experimental.dtensor.Layout.")
        unsharded = tf.experimental.dtensor.UNSHARDED
        return layout.mesh, tuple(None if axis == unsharded else axis for axis in layout.sharding_specs)

    def place(self, value: Any, dtype: str, layout: Any) -> Any:
        host = value if tf.is_tensor(value) else np.asarray(value)
        return keras.ops.convert_to_tensor(host, dtype=dtype)

    def device_bytes(self, shape: tuple[int, ...], dtype: str, layout: Any) -> int:
        return math.prod(shape) * tf.as_dtype(dtype).size

    def brought_to(self, mesh: Any, values: list[Any], names: Callable[[int], str]) -> list[Any]:
        return values

    def compiled_shardings(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
        raise UnsupportedBackendError(
            "TensorFlow runs a converted function on one device, so its compiler chooses no shardings. Ask for them on Keras' "
            "JAX backend (KERAS_BACKEND=jax)."
        )


BACKEND = TensorFlowBackend()


def _prepare_devices(devices: list[str]) -> None:
    """Makes logical CPUs where there are too few, and initialises DTensor, if TensorFlow's runtime is not up yet.

    Raises:
        ShardingError: there are too few devices, and it is too late to make more.
    """
    kind = devices[0].partition(":")[0]
    try:
        if kind == "CPU":
            machine = tf.config.list_physical_devices("CPU")[0]
            made = tf.config.get_logical_device_configuration(machine) or []
            if len(made) < len(devices):
                logical = [tf.config.LogicalDeviceConfiguration()] * len(devices)
                tf.config.set_logical_device_configuration(machine, logical)
        tf.experimental.dtensor.initialize_accelerator_system(kind)
    except (RuntimeError, ValueError):
        # The runtime is up, or DTensor is initialised: what there is has to do. TensorFlow has no other way to ask.
        pass
    there = [device.name.rpartition("device:")[2] for device in tf.config.list_logical_devices(kind)]
    missing = [name for name in devices if name not in there]
    if missing:
        raise ShardingError(
            f"The mesh needs {len(devices)} devices and TensorFlow has {len(there)}: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing. TensorFlow is running already, so that no logical CPUs can be "
            "made: call `backend_mesh` before anything is computed, or `tf.config.set_logical_device_configuration` at the "
            "start of the program."
        )


class _Lifted:
    """A pure function on tensors: added to the graph that is being traced, or run as a `tf.function` of its own."""

    def __init__(self, fn: PureFunction, variables: Any, inputs: Signature, options: LoweringOptions):
        self._fixed, self._treedef = _fixed_signature(variables, inputs)
        self._inputs = inputs
        self._narrows = _warn_narrowed(variables)
        shapes, dtypes = self._fixed
        signature = Signature(
            (*shapes, *inputs.shapes), (*dtypes, *inputs.dtypes), inputs.constraints, inputs.declared, len(shapes)
        )
        self._conversion = Conversion(fn, self._treedef, signature, options)
        #: Why the function cannot be traced with symbols.
        self._failure: Exception | None = None
        try:
            traced = self._conversion.function.traced  # now, so that a failure is known before a call
        except FINAL:  # nothing that other sizes would mend
            raise
        except Exception as error:  # whatever the user's function raises at symbolic sizes
            if not inputs.symbols():
                raise
            self._failure = error
        else:
            warn_closed_over(traced.jaxpr)
        self._functions: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self._shared = SharedFunctions()

    def __call__(
        self, params: list[Any], state: list[Any], seeds: Any, leaves: list[Any], trained: list[Any]
    ) -> tuple[Any, list[Any]]:
        variables = jax.tree.leaves((params, state))
        others = self._tensors(jax.tree.leaves((seeds, leaves)), len(variables))
        conversion = self._conversion_for(others[len(others) - len(leaves) :])
        runs_eagerly = tf.config.functions_run_eagerly()
        is_eager = tf.executing_eagerly() and not runs_eagerly
        if is_eager and not self._narrows and _may_be_read_inside(variables):
            handles = [variable.handle for variable in variables]
            return self._call(conversion, [*handles, *others], len(variables))
        tensors = [*self._tensors(variables), *others]
        recorded = Differentiable.recorded(tensors)
        if any(recorded) and not runs_eagerly:
            # In a training step calls of functions cost the graph a few ops, where modules of their own would be compiled for
            # each layer: of 64 equal blocks the first step takes 3.4 s instead of 6.8.
            wanted = recorded if is_eager else _wanted(recorded, jax.tree.leaves(trained), len(variables))
            return conversion(tensors, True, wanted, self._shared)
        return self._call(conversion, tensors) if is_eager else conversion(tensors, True)

    def _trace(self, structs: Sequence[jax.ShapeDtypeStruct]) -> Any:
        """Returns the abstract outputs for abstract inputs; params, state and seeds have their own shapes."""
        fixed = Signature(*self._fixed).structs()
        return jax.eval_shape(self._conversion.function.jitted, *fixed, *structs)

    def _tensors(self, arrays: Sequence[Any], first: int = 0) -> list[Any]:
        """Returns arguments, from number `first` on, as the tensors that the function takes."""
        dtypes = (*self._fixed[1], *self._inputs.dtypes)
        return [_as_tensor(array, dtypes[index]) for index, array in enumerate(arrays, first)]

    def _conversion_for(self, leaves: Sequence[Any]) -> Conversion:
        """Returns the conversion for these inputs, once their sizes agree with what is declared."""
        if self._inputs.declared:
            shapes = [leaf.shape for leaf in leaves]
            if all(shape.is_fully_defined() for shape in shapes):  # else the graph holds assertions
                self._inputs.check([shape.as_list() for shape in shapes])
        if self._failure is None:
            return self._conversion
        shapes = [tuple(leaf.shape.as_list()) for leaf in leaves]
        if all(None not in shape for shape in shapes):
            self._inputs.check(shapes)
        shapes = [*self._conversion.signature.keras_shapes()[: len(self._fixed[0])], *shapes]
        found = self._conversion.at_known_sizes(
            self._failure, "A function", shapes, lambda found: found.function.traced
        )
        if found is None:
            raise unknown_shape_error(self._failure, self._inputs, self._trace)
        return found

    def _call(self, conversion: Conversion, tensors: list[Any], read_inside: int = 0) -> Any:
        """Runs a conversion, of which nobody records a gradient, as a concrete function that is made once.

        Args:
            conversion: the conversion.
            tensors: the arguments.
            read_inside: of how many of the first arguments these are the handles of variables, which the function reads.
        """
        key = (
            conversion,
            read_inside,
            tuple(records.in_effect()),
        )  # the op inside has the records of the layers that share it
        with self._lock:
            if key not in self._functions:
                self._functions[key] = _concrete_function(
                    lambda args: conversion(args, True), conversion.signature, read_inside
                )
            function, treedef = self._functions[key]
        with dtensors_explained():
            return jax.tree.unflatten(treedef, _tf_private.call_flat(function, tensors))


def _replica_context() -> Any:
    """Returns the context of the replica that is running.

    Raises:
        ShardingError: there is none, in `strategy.scope()` outside of `strategy.run`.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise ShardingError(
            "A collective on Keras' TensorFlow backend is a part of what each replica runs, and was called in "
            "`strategy.scope()` outside of it. Call it in the function that `strategy.run` is given, or in a layer."
        )
    return context


def _wanted(recorded: Sequence[bool], trained: Sequence[bool], variables: int) -> tuple[bool, ...]:
    """Returns of which arguments a training step will use the gradient.

    Args:
        recorded: which arguments a tape records.
        trained: which params, the first arguments, are trained.
        variables: how many of the arguments are params and state.
    """
    wanted = list(recorded)
    wanted[: len(trained)] = [one and is_trained for one, is_trained in zip(recorded, trained, strict=False)]
    # Nobody uses gradients of state. They cost a step little; a module of their own would cost its lowering.
    wanted[len(trained) : variables] = [any(wanted)] * (variables - len(trained))
    return tuple(wanted)


def _may_be_read_inside(variables: Sequence[Any]) -> bool:
    """Returns whether an eager call may leave it to its function to read these: nobody records what is read.

    Reading four variables first and passing their values takes 0.12 ms longer (TensorFlow 2.21), of 0.28 ms. What stands in
    for a variable (a cast, a value of a stateless scope) is a tensor; a variable of a distribution strategy has a value for
    each replica.
    """
    return (
        not _tf_private.may_record()
        and not tf.distribute.has_strategy()
        and all(isinstance(variable, tf.Variable) for variable in variables)
    )


def _concrete_function(fn: Callable[[list[Any]], Any], signature: Signature, read_inside: int) -> tuple[Any, Any]:
    """Returns `fn` as a concrete function of flat outputs, and their structure: TensorFlow knows only some containers."""
    specs = [
        tf.TensorSpec(shape, tf_dtype(np.dtype(dtype)))
        for shape, dtype in zip(signature.keras_shapes(), signature.dtypes, strict=True)
    ]
    treedefs: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        values = [_read(handle, spec) for handle, spec in zip(args[:read_inside], specs, strict=False)]
        leaves, treedef = jax.tree.flatten(fn([*values, *args[read_inside:]]))
        treedefs[:] = [treedef]
        return leaves

    handles = [tf.TensorSpec((), tf.resource)] * read_inside
    # Not in the graph or on the device of whoever is the first to call it.
    with tf.init_scope(), tf.device(None):
        function = tf.function(flat, input_signature=[*handles, *specs[read_inside:]], autograph=False)
        return function.get_concrete_function(), treedefs[0]


def _read(handle: Any, spec: tf.TensorSpec) -> Any:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    value.set_shape(spec.shape)
    return value


def _warn_narrowed(variables: Any) -> bool:
    """Returns whether JAX narrows some of the variables, and warns of it."""
    dtypes = {tf.as_dtype(leaf.dtype).name: jax_dtype(leaf.dtype).name for leaf in jax.tree.leaves(variables[:2])}
    found = [f"{wide} to {narrow}" for wide, narrow in dtypes.items() if wide != narrow]
    if found:
        warnings.warn(
            f"The layer's function takes its variables as JAX does while its 64-bit types are off ({', '.join(found)}); the "
            "variables stay as they are. Give the layer `dtype='float32'`, or compute in 64 bits with "
            "`jax.config.update('jax_enable_x64', True)`.",
            stacklevel=2,
        )
    return bool(found)


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
    dtypes = tuple(jax_dtype(leaf.dtype).name for leaf in leaves)
    return (shapes, dtypes), jax.tree.structure(((*variables, [0] * len(inputs.shapes)), {}))
