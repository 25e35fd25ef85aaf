"""JAX functions as differentiable TensorFlow ops: gradients of any order, without a second forward pass.

`Differentiable` has two forms. The plain form runs the function alone; its gradient recomputes. The residual form also
returns what the backward pass needs (the leaves of `jax.vjp`'s closure) and is used where a gradient is being recorded.
Both are traced under one symbolic scope, so that residuals with symbolic sizes fit.

Four causes for the way it is written, each seen to fail otherwise:
* XlaCallModule has no gradient. Its outputs pass through `stop_gradient` and get their gradient from an identity
  (`_attach_gradient`), or a tape outside of a `tf.function`, or after a reload, finds the bare op.
* Everything a gradient needs is an argument of that identity. A closure over tensors breaks saving.
* Every such argument passes an identity outside first, or gradients of order 2 and 3 are "out of scope".
* TensorFlow's gradient of a complex function is the conjugate of JAX's; cotangents are conjugated on the way in and out,
  so that gradients agree with those of native ops.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import tensorflow as tf
from jax.interpreters import ad

from jaxbridge.core.dims import symbols_in
from jaxbridge.core.jaxprs import check_lengths, equations, inner_jaxprs, refuse_too_large
from jaxbridge.errors import DifferentiationError
from jaxbridge.jax2tf import _tf_private
from jaxbridge.jax2tf.call_module import emit
from jaxbridge.jax2tf.effects import check_effects
from jaxbridge.jax2tf.lowering import LoweredModule, LoweringOptions, lower
from jaxbridge.jax2tf.saved_gradients import kept_pullback


class ResidualForm:
    """The forward pass with residuals, and the backward pass.

    Args:
        forward: the forward pass.
        used_args: indices of the arguments that the backward pass takes.
        backward: takes the fresh residuals, then the arguments at `used_args`, then a cotangent per differentiable output;
            returns a gradient per differentiable argument.
        structs: shape and dtype of what `backward` takes.
        function: the function.
    """

    def __init__(
        self,
        forward: LoweredModule,
        used_args: tuple[int, ...],
        backward: Callable[..., tuple[Any, ...]],
        structs: Sequence[Any],
        function: Differentiable,
    ):
        self.forward, self.used_args = forward, used_args
        self._backward, self._structs = backward, tuple(structs)
        self._wrt, self._options = function.wrt, function.options
        self._lowered: dict[tuple[int, ...], LoweredModule] = {}

    def backward(self, wrt: tuple[int, ...]) -> LoweredModule:
        """Returns the backward pass for the gradients of these arguments."""
        if wrt not in self._lowered:
            wanted = [self._wrt.index(i) for i in wrt]

            def part(*values: Any) -> list[Any]:
                gradients = self._backward(*values)  # traced once, whatever number of gradients is wanted
                return [gradients[n] for n in wanted]

            self._lowered[wrt] = lower(jax.jit(part), self._structs, self._options)
        return self._lowered[wrt]


class Differentiable:
    """A JAX function over flat arrays, callable on tensors and differentiable in reverse mode to any order.

    Args:
        fn: `fn(*arrays) -> sequence of arrays`.
        structs: shape and dtype per argument; symbolic sizes share one scope.
        options: how to lower.
        is_gradient: whether it is the gradient of another one. TensorFlow asks for all gradients of a function, so a graph
            holds ops for some that nobody uses, and runs only the others.
    """

    def __init__(
        self,
        fn: Callable[..., Sequence[Any]],
        structs: Sequence[jax.ShapeDtypeStruct],
        options: LoweringOptions,
        is_gradient: bool = False,
    ):
        # One jitted function for all forms: `fn` itself is traced once, whatever is asked of it afterwards.
        self.jitted = jax.jit(lambda *args: tuple(fn(*args)))
        self.structs = tuple(structs)
        self.options = options
        self._emit = functools.partial(emit, may_be_pruned=is_gradient)
        #: Indices of the arguments that have a gradient.
        self.wrt = tuple(i for i, struct in enumerate(self.structs) if is_inexact(struct))

    @functools.cached_property
    def traced(self) -> jax.stages.Traced:
        traced = self.jitted.trace(*self.structs)
        refuse_too_large(traced.jaxpr)
        check_lengths(traced.jaxpr)
        check_effects(traced.jaxpr)
        return traced

    @functools.cached_property
    def plain(self) -> LoweredModule:
        _ = self.traced  # which is refused, if need be, before it is lowered
        return lower(self.jitted, self.structs, self.options)

    @functools.cached_property
    def out_structs(self) -> tuple[Any, ...]:
        return tuple(self.traced.out_info)

    @functools.cached_property
    def outs_with_gradient(self) -> tuple[int, ...]:
        return tuple(i for i, struct in enumerate(self.out_structs) if is_inexact(struct))

    @functools.cached_property
    def refusal(self) -> str | None:
        """Why JAX cannot differentiate the function in reverse mode; None if it can."""
        if not any(map(_may_lack_gradient, equations(self.traced.jaxpr, _lacks_own_derivative))):
            return None
        cotangents = [self.out_structs[i] for i in self.outs_with_gradient]
        try:
            jax.eval_shape(self._pullback, *self.structs, *cotangents)
        except DifferentiationError as error:
            return str(error)
        return None

    @functools.cached_property
    def residual(self) -> ResidualForm:
        return _residual_form(self)

    @functools.cached_property
    def pullback(self) -> Differentiable:
        """The function `(*args, *cotangents) -> gradients`, itself differentiable."""
        cotangents = [self.out_structs[i] for i in self.outs_with_gradient]
        return Differentiable(self._pullback, [*self.structs, *cotangents], self.options, is_gradient=True)

    def _pullback(self, *args_and_cotangents: Any) -> tuple[Any, ...]:
        args = args_and_cotangents[: len(self.structs)]
        with _differentiating():
            _, vjp, _ = self.vjp(args)
            return _conjugated(vjp(_conjugated(args_and_cotangents[len(self.structs) :])))

    def vjp(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], Callable[..., Any], tuple[Any, ...]]:
        """Returns `jax.vjp` over the differentiable arguments and outputs: those outputs, the closure, the others."""

        def differentiable_part(*varying: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            full = list(args)
            for index, value in zip(self.wrt, varying, strict=True):
                full[index] = value
            outs = self.jitted(*full)
            return tuple(filter(is_inexact, outs)), tuple(out for out in outs if not is_inexact(out))

        return jax.vjp(differentiable_part, *(args[i] for i in self.wrt), has_aux=True)

    def __call__(self, args: Sequence[Any], wanted: Sequence[bool] | None = None) -> list[Any]:
        """Runs the function on tensors, one per argument, and returns one tensor per output.

        Args:
            args: a tensor per argument.
            wanted: of which arguments the gradient will be used, as far as one can know: all gradients are right, but
                without one that is wanted the forward pass runs again, and those that are not wanted are computed apart
                from the others. None: those that a tape records, which is not known for the arguments of a `tf.function`
                under an outer tape.
        """
        args = [tf.identity(arg) for arg in args]
        if not self.wrt:
            return self._emit(self.plain, args)
        if not self.outs_with_gradient:  # or a tape asks the op itself, which has none
            return [tf.stop_gradient(out) for out in self._emit(self.plain, args)]
        if self.refusal is not None:
            return self.without_gradient(args, self.refusal)
        saved_pullback = kept_pullback(self)
        wanted = self.recorded(args) if wanted is None else wanted
        if saved_pullback is None and any(wanted[i] for i in self.wrt):
            return self._call_with_residuals(args, wanted)
        outs = self._emit(self.plain, args)
        pullback = saved_pullback or (lambda *values: self.pullback(values))
        return self._with_gradient(outs, (), args, lambda _, xs, cts: list(pullback(*xs, *cts)))

    @staticmethod
    def recorded(args: Sequence[Any]) -> tuple[bool, ...]:
        """Returns which tensors a tape records; outside of a graph, where nothing is pruned, all if it records one."""
        if tf.executing_eagerly():
            return (_tf_private.is_recorded(args),) * len(args)
        return tuple([_tf_private.is_recorded([arg]) for arg in args])

    def without_gradient(self, args: Sequence[Any], message: str) -> list[Any]:
        """Runs the function on tensors; asking for a gradient raises with `message`."""
        outs = self._emit(self.plain, args)
        graph = tf.compat.v1.get_default_graph()
        if not self.wrt:
            return outs
        refused = lambda _, xs, __: _refused_gradients([xs[i] for i in self.wrt], message, graph)
        return self._with_gradient(outs, (), args, refused)

    def _call_with_residuals(self, args: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        form = self.residual
        # The residuals too: with two tapes around a function TensorFlow differentiates all that its graph captured.
        results = [tf.stop_gradient(result) for result in self._emit(form.forward, args)]
        count = len(self.out_structs)
        outs, residuals = results[:count], results[count:]
        parts = [tuple(i for i in self.wrt if wanted[i] == which) for which in (True, False)]

        def backward(residuals: Sequence[Any], xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            values = [*residuals, *(xs[i] for i in form.used_args), *cts]
            grads: dict[int, Any] = {}
            for part in filter(None, parts):
                grads.update(zip(part, emit(form.backward(part), values, may_be_pruned=True), strict=True))
            again = self.pullback
            return _attach_gradient(
                [tf.stop_gradient(grads[i]) for i in self.wrt],
                (),
                [*xs, *cts],
                lambda _, both, cts2: again.scatter(again.pullback([*both, *cts2])),
            )

        return self._with_gradient(outs, residuals, args, backward)

    def _with_gradient(
        self, outs: list[Any], residuals: Sequence[Any], args: Sequence[Any], backward: Callable[..., list[Any]]
    ) -> list[Any]:
        """Returns `outs` with a gradient for those that have one."""
        tied = _attach_gradient(
            [tf.stop_gradient(outs[i]) for i in self.outs_with_gradient],
            residuals,
            args,
            lambda rs, xs, cts: self.scatter(backward(rs, xs, cts)),
        )
        outs = list(outs)
        for index, out in zip(self.outs_with_gradient, tied, strict=True):
            outs[index] = out
        return outs

    def scatter(self, grads: Sequence[Any]) -> list[Any]:
        """Returns a gradient or None per argument, from gradients of the differentiable arguments."""
        full: list[Any] = [None] * len(self.structs)
        for index, grad in zip(self.wrt, grads, strict=True):
            full[index] = grad
        return full


def is_inexact(value: Any) -> bool:
    """Returns whether a value is of a floating or complex dtype, and so has a gradient."""
    return jnp.issubdtype(value.dtype, jnp.inexact)


@contextlib.contextmanager
def _differentiating() -> Iterator[None]:
    """Returns a context in which what JAX raises while it differentiates becomes a DifferentiationError."""
    try:
        yield
    except Exception as error:  # ValueError, NotImplementedError, TypeError ... by primitive
        raise DifferentiationError(
            f"JAX cannot differentiate this function in reverse mode: {error} Write `lax.fori_loop` with fixed "
            "bounds, `lax.scan`, or give it a rule with `jax.custom_vjp`; convert it with `with_gradient=False` or "
            "call it through `tf.stop_gradient` where no gradient is needed."
        ) from error


def _conjugated(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jnp.conj(v) if jnp.issubdtype(v.dtype, jnp.complexfloating) else v for v in values)


def _attach_gradient(
    outs: Sequence[Any], residuals: Sequence[Any], args: Sequence[Any], backward: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Returns `outs`, whose gradient with respect to `args` is `backward(residuals, args, cotangents)`."""
    split_1, split_2 = len(outs), len(outs) + len(residuals)

    @tf.custom_gradient
    def tie(*tensors: Any) -> Any:
        saved, xs = tensors[split_1:split_2], tensors[split_2:]

        def grad(*cotangents: Any) -> list[Any]:
            # `tf.gather` and its like send sparse cotangents.
            return [None] * split_2 + list(backward(saved, xs, [tf.convert_to_tensor(ct) for ct in cotangents]))

        return tuple(tf.identity(out) for out in tensors[:split_1]), grad

    return list(tie(*(tf.identity(tensor) for tensor in (*outs, *residuals, *args))))


def _refused_gradients(args: Sequence[Any], message: str, graph: Any) -> list[Any]:
    """Raises a DifferentiationError, or returns tensors that fail with its message when they are computed.

    The latter where the gradient belongs to another graph than the function: TensorFlow builds that graph whenever a
    `tf.function` is called under a tape, and when it saves custom gradients, without anybody having asked for it.
    `strings.to_number` quotes its input in its error, needs no Python in a SavedModel, and has no XLA kernel, so that
    `jit_compile` refuses as well, where an assertion would vanish.
    """
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph() is graph:
        raise DifferentiationError(message)
    failing = tf.strings.to_number(message, name="this_function_has_no_gradient")
    return [tf.cast(failing, arg.dtype) * tf.ones_like(arg) for arg in args]


def _residual_form(function: Differentiable) -> ResidualForm:
    closure: dict[str, Any] = {}

    def forward(*args: Any) -> tuple[Any, ...]:
        with _differentiating():
            outs, vjp, others = function.vjp(args)
        leaves, closure["tree"] = jax.tree.flatten(vjp)
        closure["plan"], fresh = _plan_residuals(leaves, args)
        return (*_merge(outs, others, function), *fresh)

    lowered = lower(jax.jit(forward), function.structs, function.options)
    plan: list[_Leaf] = closure["plan"]
    count = len(function.out_structs)
    residual_structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in lowered.out_avals[count:]]
    cotangent_structs = [
        jax.ShapeDtypeStruct(lowered.out_avals[i].shape, lowered.out_avals[i].dtype)
        for i in function.outs_with_gradient
    ]
    used = {leaf.index for leaf in plan if leaf.is_argument}
    gradients = [function.structs[i] for i in function.wrt]
    used |= _args_that_fix_symbols(function.structs, [*residual_structs, *cotangent_structs], used, gradients)
    used_args = tuple(sorted(used))

    def backward(*values: Any) -> tuple[Any, ...]:
        fresh = values[: len(residual_structs)]
        args = dict(zip(used_args, values[len(fresh) : len(fresh) + len(used_args)], strict=True))
        cotangents = values[len(fresh) + len(used_args) :]
        vjp = jax.tree.unflatten(closure["tree"], [leaf.restored(args, fresh) for leaf in plan])
        with _differentiating():
            return _conjugated(vjp(_conjugated(cotangents)))

    structs = [*residual_structs, *(function.structs[i] for i in used_args), *cotangent_structs]
    return ResidualForm(lowered, used_args, backward, structs, function)


class _Leaf(NamedTuple):
    """Where the backward pass finds one leaf of the closure of `jax.vjp`."""

    is_argument: bool
    index: int
    key_impl: Any = None

    def restored(self, args: dict[int, Any], fresh: Sequence[Any]) -> Any:
        value = args[self.index] if self.is_argument else fresh[self.index]
        return value if self.key_impl is None else jax.random.wrap_key_data(value, impl=self.key_impl)


def _plan_residuals(leaves: Sequence[Any], args: Sequence[Any]) -> tuple[list[_Leaf], list[Any]]:
    """Says where each leaf comes from, and returns the arrays that must be handed over: no argument, none twice.

    Typed PRNG keys (from rematerialised dropout) travel as their key data.
    """
    plan: list[_Leaf] = []
    fresh: list[Any] = []
    seen: dict[int, _Leaf] = {}
    for leaf in leaves:
        index = next((i for i, arg in enumerate(args) if arg is leaf), None)
        if index is not None:
            plan.append(_Leaf(True, index))
            continue
        if id(leaf) not in seen:
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            seen[id(leaf)] = _Leaf(False, len(fresh), jax.random.key_impl(leaf) if is_key else None)
            fresh.append(jax.random.key_data(leaf) if is_key else leaf)
        plan.append(seen[id(leaf)])
    return plan, fresh


def _merge(outs: Sequence[Any], others: Sequence[Any], function: Differentiable) -> list[Any]:
    with_gradient, without = iter(outs), iter(others)
    return [next(with_gradient) if is_inexact(struct) else next(without) for struct in function.out_structs]


def _args_that_fix_symbols(
    args: Sequence[Any], others: Sequence[Any], used: set[int], results: Sequence[Any]
) -> set[int]:
    """Returns arguments that the backward pass must take only because they tell the size of a symbol.

    `jax.export` finds a symbol where it stands alone as a size of an argument; a residual of size `b*t` tells neither.

    Args:
        args: the arguments of the function.
        others: what the backward pass takes beside arguments of the function.
        used: indices of the arguments that it takes anyway.
        results: what it returns: the gradient has the size of an axis of which nothing else is left (a mean over it).
    """
    taken = [*others, *(args[i] for i in used)]
    needed = {symbol for struct in [*taken, *results] for symbol in _symbols(struct)}
    told = {symbol for struct in taken for symbol in _lone_symbols(struct)}
    added: set[int] = set()
    for symbols_of in (_lone_symbols, _symbols):  # those in expressions (`2*k`) only where there is no other
        for index, struct in enumerate(args):
            new = (symbols_of(struct) & needed) - told
            if new:
                added.add(index)
                told |= new
    return added


def _symbols(struct: Any) -> set[str]:
    return {name for size in struct.shape if not isinstance(size, int) for name in symbols_in(str(size))}


def _lone_symbols(struct: Any) -> set[str]:
    return {str(size) for size in struct.shape if not isinstance(size, int) and str(size).isidentifier()}


def _lacks_own_derivative(equation: Any) -> bool:
    return not equation.primitive.name.startswith(("custom_vjp_call", "custom_jvp_call"))


def _may_lack_gradient(equation: Any) -> bool:
    """Returns whether an equation may be one that JAX cannot differentiate in reverse mode (it may still be harmless)."""
    name = equation.primitive.name
    if name == "while":
        return True
    has_floats = any(is_inexact(v.aval) for v in equation.invars if hasattr(v.aval, "dtype"))
    has_inner = any(True for _ in inner_jaxprs(equation))
    return (
        has_floats and not has_inner and not name.startswith("custom_") and equation.primitive not in ad.primitive_jvps
    )
