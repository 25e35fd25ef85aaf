"""`convert`: a JAX function as a TensorFlow function, with the contract of `jax.experimental.jax2tf.convert`."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jaxbridge.core import dims, records
from jaxbridge.core._jax_private import trace_context
from jaxbridge.core.arguments import checked
from jaxbridge.core.canonical import canonical_key
from jaxbridge.core.dense import refusal
from jaxbridge.core.helpful_sizes import advice
from jaxbridge.core.programs import MADE_KEPT, PROGRAMS, Program
from jaxbridge.core.shapes import Signature, Size, make_signature
from jaxbridge.core.tree_paths import path_text, plain_containers
from jaxbridge.errors import ConversionError, DifferentiationError, ShapeError
from jaxbridge.jax2tf import targets
from jaxbridge.jax2tf.call_module import jax_dtype, tf_dtype
from jaxbridge.jax2tf.gradients import Differentiable, Run, run_here
from jaxbridge.jax2tf.lowering import LoweringOptions
from jaxbridge.jax2tf.settled import warn_of_settled
from jaxbridge.jax2tf.statistics import count


@checked()
def convert(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = True,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[Any] = (),
    stablehlo_version: str | None = None,
    nan: str = "keep",
    source_info: bool = False,
    native_serialization: bool | None = None,
    enable_xla: bool | None = None,
) -> Callable[..., Any]:
    """Makes a TensorFlow function of a JAX function.

    Contract and keyword names are those of `jax.experimental.jax2tf.convert`. What differs: the StableHLO inside is
    written for the installed TensorFlow; gradients have any order and do not run the forward pass again; a conversion is
    kept and reused for arguments of the same structure, dtypes and declared shapes under the same JAX configuration;
    sizes may be 0; gradients of complex
    values follow TensorFlow's convention (the conjugate of JAX's), so that they compose with native ops.

    Args:
        fun_jax: a function from pytrees of arrays to a pytree of arrays.
        polymorphic_shapes: None (all sizes fixed), one shape text for all arguments such as "(b, ...)", or a sequence
            with an entry per positional argument: None, a text, or a pytree of texts that is a prefix of the argument.
            Equal names are equal sizes; sizes may be expressions such as "4*k"; `_` and `...` stand for the argument's
            own sizes.
        polymorphic_constraints: constraints between the names, such as ("k >= 2",). They are checked at every call: in
            Python where sizes are static, by an assertion in graphs.
        with_gradient: whether the result can be differentiated. False: asking for a gradient raises.
        native_serialization_platforms: platforms to lower for, out of "cpu", "cuda", "rocm" and "tpu"; None for JAX's
            default backend.
        native_serialization_disabled_checks: `jax.export.DisabledSafetyCheck`s.
        stablehlo_version: StableHLO version to write, such as "1.13.0", or a TensorFlow release to write for, such as
            "tensorflow==2.18"; None for what the installed TensorFlow reads. What the installed TensorFlow and JAX do not
            know is not written either.
        nan: "keep": a maximum or minimum of floats is NaN where an operand is, as in JAX and numpy, elementwise, in
            reductions, pooling, scatter and their gradients. "fast": as TensorFlow's compiler has them, which on CPU may
            drop the NaN; TensorFlow Lite converts nothing else.
        source_info: whether the module holds files and lines of the function's code, absolute paths, beside the names of its
            scopes and modules, which profiles show.
        native_serialization: taken for the sake of jax2tf, with a warning: True is always so, and False changes nothing.
        enable_xla: taken like it.

    Returns:
        A function that takes and returns pytrees of tensors in place of arrays. Floats and integers of 64 bits are
        narrowed to 32 unless `jax_enable_x64` is on, as JAX does; one warning says so.

    Limits: XLA drops assertions, so a graph with `jit_compile=True` does not check constraints; TensorFlow's forward mode
    (`tf.autodiff.ForwardAccumulator`) does not work; where the tape is around a `tf.function` and watches its arguments
    only, the gradient runs the forward pass again.

    Raises:
        SignatureError: an argument is not what it must be, such as a platform that there is not.
        ConversionError: a target is unknown, at a call an argument or output is no tensor, the installed versions do
            not fit, or an op needs a newer StableHLO than the target reads.
        UnsupportedOperationError: at a call, the function holds what TensorFlow cannot run: a callback, a custom call
            without a portable rule (`jnp.linalg.eig`), a `shard_map` over several devices.
        ShapeError: at a call, a size breaks a declared shape or a constraint.
        DifferentiationError: a gradient is asked of a function that JAX cannot differentiate (`lax.while_loop`); where
            the tape is around a `tf.function`, `tf.errors.InvalidArgumentError` with the same text.

    Example:
        >>> import jax.numpy as jnp, tensorflow as tf
        >>> from jaxbridge import jax2tf
        >>> f = tf.function(jax2tf.convert(jnp.sin, polymorphic_shapes=["(b, 2)"]), autograph=False)
        >>> f(tf.zeros((3, 2))).shape
        TensorShape([3, 2])
    """
    options = LoweringOptions(
        tuple(native_serialization_platforms or ()) or None,
        tuple(native_serialization_disabled_checks),
        stablehlo_version,
        nan,
        bool(source_info),
    )
    warn_of_settled({"native_serialization": native_serialization, "enable_xla": enable_xla})
    targets.resolve(stablehlo_version)  # now, so that a mistake is known before a call
    conversions = _Conversions(fun_jax, options)
    constraints = tuple(polymorphic_constraints)
    narrowed: list[str] = []  # what was warned of: once per converted function

    def converted(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = plain_containers((args, kwargs))
        paths, values, treedef = _flatten_args(args, kwargs)
        tensors = [to_tensor(value, path) for path, value in zip(paths, values, strict=True)]
        if not narrowed:
            narrowed.extend(_warn_narrowed(paths, values))
        signature = _signature(polymorphic_shapes, constraints, args, kwargs, tensors)
        return conversions.get(treedef, signature)(tensors, with_gradient)

    return tf.autograph.experimental.do_not_convert(_named_like(fun_jax, converted))


class Conversion:
    """A JAX function converted for one structure, one set of dtypes and one set of declared shapes."""

    def __init__(
        self,
        fn: Callable[..., Any],
        treedef: Any,
        signature: Signature,
        options: LoweringOptions,
    ):
        self.signature = signature
        self._made_of = fn, treedef, options
        self._narrowed: dict[Any, Conversion | None] = {}
        self._lock = threading.RLock()
        out_trees: list[Any] = []
        #: What layers inside the function say of sharding.
        self._records: dict[records.Record, None] = {}

        def flat(*values: Any) -> list[Any]:
            count("traces")
            args, kwargs = jax.tree.unflatten(treedef, values)
            with records.gathering() as found:
                pairs, out_tree = jax.tree_util.tree_flatten_with_path(fn(*args, **kwargs))
            for path, leaf in pairs:
                _check_output(leaf, path_text(path))
            self._records.update(found)
            out_trees[:] = [out_tree]
            return [leaf for _, leaf in pairs]

        self._out_trees = out_trees
        narrowed = self._with_gradient_at if signature.symbols() else None
        self.function = Differentiable(flat, signature.structs(), options, narrowed=narrowed)

    def __call__(
        self, tensors: Sequence[Any], with_gradient: bool, wanted: Sequence[bool] | None = None, run: Run = run_here
    ) -> Any:
        """Runs the function on a list of tensors and returns its outputs, a pytree; see `Differentiable`."""
        message = "This function was converted with `with_gradient=False`: convert it with `with_gradient=True`."
        tensors = checked_sizes(self.signature, tensors)
        _ = self.function.traced  # by which the records and the structure of the outputs are known
        with records.written(self._records):
            if with_gradient:
                outs = self.function(tensors, wanted, run)
            else:
                outs = self.function.without_gradient(tensors, message)
        if not tf.executing_eagerly():
            _set_known_sizes(outs, self.function.out_structs, self.signature, tensors)
        return jax.tree.unflatten(self._out_trees[0], outs)

    def at_known_sizes(
        self, error: Exception, what: str, shapes: Sequence[Sequence[Size]], trace: Callable[[Conversion], object]
    ) -> Conversion | None:
        """Returns the conversion in which sizes that are known stand in the place of their symbols; None if that is no help.

        Axis 0 stays a symbol where it can, since its size differs from batch to batch.

        Args:
            error: why it cannot be traced with symbols.
            what: what cannot be; one warning says so.
            shapes: a shape per argument.
            trace: traces what must be.
        """
        with self._lock:
            for known in ([(None, *shape[1:]) if shape else () for shape in shapes], shapes):
                signature = self.signature.at_known_sizes(known)
                if signature == self.signature:
                    continue
                is_first = not any(key[0] == what for key in self._narrowed)
                if (what, signature) not in self._narrowed:
                    self._narrowed[what, signature] = self._at(signature, trace)
                    if is_first:
                        self._warn_narrowed(what, error.__cause__ or error)
                if (found := self._narrowed[what, signature]) is not None:
                    return found
        return None

    def _at(self, signature: Signature, trace: Callable[[Conversion], object]) -> Conversion | None:
        """Returns the function converted for another signature; None where it cannot be traced with its symbols."""
        fn, treedef, options = self._made_of
        conversion = Conversion(fn, treedef, signature, options)
        try:
            trace(conversion)
        except Exception:  # whatever the user's function raises at symbolic sizes
            if not signature.symbols():
                raise
            return None
        return conversion

    def _warn_narrowed(self, what: str, error: BaseException) -> None:
        warnings.warn(
            f"{what} cannot be traced for unknown sizes ({type(error).__name__}: {str(error).splitlines()[0]}), so it is "
            "converted anew for every new input shape. Say what is known of the sizes with `polymorphic_shapes`, or make "
            "them fixed with `keras.Input(..., batch_size=)`.",
            stacklevel=2,
        )

    def _with_gradient_at(
        self, error: DifferentiationError, tensors: Sequence[Any], prepare: Callable[[Differentiable], object]
    ) -> Differentiable:
        """Returns the function in which sizes that are known of tensors are no symbols, once `prepare` traced its gradient."""
        shapes = [tuple(tensor.shape.as_list()) for tensor in tensors]
        trace = lambda conversion: prepare(conversion.function)
        found = self.at_known_sizes(error, "The gradient of a function", shapes, trace)
        if found is None:
            raise self._gradient_error(error) from error
        return found.function

    def _gradient_error(self, error: DifferentiationError) -> DifferentiationError:
        def works(signature: Signature) -> bool:
            try:
                return self._at(signature, lambda conversion: conversion.function.pullback.traced) is not None
            except Exception:  # as in `_at`, at concrete sizes
                return False

        cause, signature = error.__cause__ or error, self.signature
        said = advice(cause, signature, works)
        if said is None:
            return error
        return DifferentiationError(
            f"JAX cannot differentiate this function for inputs of shapes {', '.join(signature.shapes[signature.leading :])}, "
            f"whose sizes are unknown: {cause} {said}"
        )


class _Conversions:
    """The conversions of one function, the least recently used leaving first; equal functions share theirs."""

    def __init__(self, fun_jax: Callable[..., Any], options: LoweringOptions):
        self._fun_jax, self._options = fun_jax, options
        self._kept: collections.OrderedDict[Any, tuple[Program, Conversion]] = collections.OrderedDict()
        self._lock = threading.RLock()

    def get(self, treedef: Any, signature: Signature) -> Conversion:
        key = (treedef, signature, trace_context())
        with self._lock:
            if key in self._kept:
                count("cache_hits")
            else:
                # Now, not when `convert` was called: the key holds the globals that the trace is about to read.
                program = PROGRAMS.get(canonical_key(self._fun_jax))
                conversion = program.once(
                    ("converted", treedef, signature, self._options),
                    lambda: Conversion(self._fun_jax, treedef, signature, self._options),
                )
                self._kept[key] = program, conversion
                if len(self._kept) > MADE_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key][1]


def _named_like(fun_jax: Callable[..., Any], converted: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `converted` with the name, the documentation and, where it has no defaults, the parameters of `fun_jax`.

    `tf.function` fills in defaults, and would turn one that JAX must see as a Python value (an axis) into a tensor.
    """
    functools.update_wrapper(converted, fun_jax, updated=())
    del converted.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    try:
        signature = inspect.signature(fun_jax)
    except (TypeError, ValueError):  # some callables written in C++ have none
        return converted
    if all(parameter.default is parameter.empty for parameter in signature.parameters.values()):
        converted.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return converted


def _flatten_args(args: Any, kwargs: Any) -> tuple[list[str], list[Any], Any]:
    pairs, treedef = jax.tree_util.tree_flatten_with_path((args, kwargs))
    return [path_text(path[1:]) for path, _ in pairs], [value for _, value in pairs], treedef


def to_tensor(value: Any, path: str) -> Any:
    """Returns an argument as a tensor of the dtype that JAX gives it."""
    if isinstance(value, jax.core.Tracer):
        raise ConversionError(
            f"Argument '{path}' is a JAX tracer: a converted function is a TensorFlow function and cannot be called "
            "inside jax.jit, jax.grad or another JAX transformation. Call the JAX function itself there."
        )
    refused = refusal(value, takes_sparse=True)  # the leaves of a sparse array are arrays
    if refused is not None:
        raise ConversionError(f"Argument '{path}' is {refused}")
    if not isinstance(value, tf.Tensor | tf.Variable):
        try:
            if isinstance(value, bool | int | float | complex):
                # The widest dtype that JAX has, not TensorFlow's 32 bits; numpy, as TensorFlow lets integers overflow.
                value = np.array(value, jax_dtype(tf.as_dtype(np.array(value).dtype)))
            value = tf.convert_to_tensor(np.asarray(value) if isinstance(value, jax.Array) else value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConversionError(
                f"Argument '{path}' of type {type(value).__name__} cannot be made into a tensor: {error}"
            ) from error
    wanted = tf_dtype(jax_dtype(value.dtype))
    return tf.convert_to_tensor(value) if value.dtype == wanted else tf.cast(value, wanted)


def _check_output(value: Any, path: str) -> None:
    where = f"Output '{path}'" if path else "The output"
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise ConversionError(
            f"{where} is a typed key ({dtype}), which TensorFlow does not have. Return `jax.random.key_data(key)`; in JAX "
            "`jax.random.wrap_key_data` makes a key of it again."
        )
    is_text = getattr(dtype, "kind", "") in ("U", "S", "O")
    is_array = dtype is not None or isinstance(value, bool | int | float | complex) or hasattr(value, "__jax_array__")
    if is_text or not is_array:
        raise ConversionError(
            f"{where} is {value!r} of type {type(value).__name__}. A converted function returns a pytree of arrays and "
            "numbers: leave it out, or add it outside."
        )


def _warn_narrowed(paths: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Warns of tensors and arrays of 64-bit types that become 32-bit ones, and returns which."""
    found = []
    for path, value in zip(paths, values, strict=True):
        if isinstance(value, tf.Tensor | tf.Variable | np.ndarray) and value.dtype not in (object, tf.string):
            wide = tf.as_dtype(value.dtype)
            narrow = jax.dtypes.canonicalize_dtype(wide.as_numpy_dtype) if wide.is_numeric else wide
            if narrow.name != wide.name:
                found.append(f"'{path}' ({wide.name} to {narrow.name})")
    if found:
        warnings.warn(
            f"Arguments are narrowed, as JAX does while its 64-bit types are off: {', '.join(found[:5])}"
            f"{', ...' if len(found) > 5 else ''}. Cast them yourself, or keep them wide with "
            "`jax.config.update('jax_enable_x64', True)`.",
            stacklevel=4,  # the caller, behind TensorFlow's wrapper
        )
    return found


def _signature(
    polymorphic_shapes: Any, constraints: tuple[str, ...], args: Any, kwargs: Any, tensors: Sequence[Any]
) -> Signature:
    """Returns shapes and dtypes of the arguments, with the symbols that `polymorphic_shapes` declares."""
    if isinstance(polymorphic_shapes, list):
        polymorphic_shapes = tuple(polymorphic_shapes)
    try:
        declared = jax.tree.broadcast(polymorphic_shapes, args, is_leaf=lambda node: node is None)
    except ValueError as error:
        raise ShapeError(
            "`polymorphic_shapes` must be None, a text, or have an entry (None, a text, or a pytree of texts) per "
            f"positional argument: {error}"
        ) from error
    # A None in the arguments is no tensor, so has no shape; the texts that the broadcasting gave to it are left out.
    is_none = lambda node: node is None
    pairs = zip(jax.tree.leaves(args, is_leaf=is_none), jax.tree.leaves(declared, is_leaf=is_none), strict=True)
    texts = [_shape_text(text) for arg, text in pairs if arg is not None] + [None] * len(jax.tree.leaves(kwargs))
    for tensor in tensors:
        if tensor.shape.rank is None:
            raise ShapeError("A tensor of unknown rank cannot be converted. Give it a rank with `tf.ensure_shape`.")
    shapes = tuple(tuple(tensor.shape.as_list()) for tensor in tensors)
    dtypes = tuple(jax_dtype(tensor.dtype).name for tensor in tensors)
    return make_signature(shapes, dtypes, declared=tuple(texts), constraints=constraints)


def _shape_text(entry: Any) -> str | None:
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, tuple):  # a `jax.experimental.jax2tf.PolyShape`, whose text is that of its sizes
        return str(entry)
    raise ShapeError(
        f"An entry of `polymorphic_shapes` must be None or a text such as '(b, ...)', got {entry!r} of type "
        f"{type(entry).__name__}."
    )


def _set_known_sizes(outs: Sequence[Any], structs: Sequence[Any], signature: Signature, tensors: Sequence[Any]) -> None:
    """Sets the sizes of outputs in a graph that follow from static sizes of the arguments."""
    known = {
        name: size
        for text, tensor in zip(signature.shapes, tensors, strict=True)
        for name, size in zip(dims.split_shape(text), tensor.shape.as_list(), strict=True)
        if name.isidentifier() and size is not None
    }
    if not known:
        return
    for out, struct in zip(outs, structs, strict=True):
        # jax.export writes powers as `b^2`.
        texts = [str(size).replace("^", "**") for size in struct.shape]
        decided = [set(dims.symbols_in(text)) <= known.keys() for text in texts]
        out.set_shape([dims.evaluate(t, known) if d else None for t, d in zip(texts, decided, strict=True)])


def checked_sizes(signature: Signature, tensors: Sequence[Any]) -> list[Any]:
    """Returns the tensors once their sizes agree with the signature: checked now, or by assertions in a graph."""
    if not signature.symbols():
        return list(tensors)
    sizes = [
        [static if static is not None else tf.shape(tensor)[axis] for axis, static in enumerate(tensor.shape.as_list())]
        for tensor in tensors
    ]
    assertions = []
    for condition, message in signature.conditions(sizes):
        if isinstance(condition, bool):
            if not condition:
                raise ShapeError(message)
        else:
            assertions.append(tf.debugging.Assert(condition, [message]))
    if not assertions:
        return list(tensors)
    with tf.control_dependencies([a for a in assertions if a is not None]):
        return [tf.identity(tensor) for tensor in tensors]
