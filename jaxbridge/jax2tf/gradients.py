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

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import tensorflow as tf
from jax.interpreters import ad

from jaxbridge.core.jaxprs import check_lengths, equations, inner_jaxprs, refuse_too_large
from jaxbridge.core.made_once import made_once
from jaxbridge.errors import DifferentiationError
from jaxbridge.jax2tf import _tf_private
from jaxbridge.jax2tf.call_module import emit
from jaxbridge.jax2tf.effects import check_effects
from jaxbridge.jax2tf.lowering import LoweredModule, LoweringOptions, lower
from jaxbridge.jax2tf.residuals import ResidualForm, conjugated, differentiating, is_inexact, residual_form
from jaxbridge.jax2tf.saved_gradients import kept_pullback

#: Runs a lowered module on tensors, one per argument of its function; nobody can differentiate what it returns.
Run = Callable[..., list[Any]]


def run_here(module: LoweredModule, args: Sequence[Any], may_be_pruned: bool = False) -> list[Any]:
    """Runs a module as an op of its own in the graph that is being traced, or eagerly."""
    return [tf.stop_gradient(out) for out in emit(module, args, may_be_pruned)]


class Differentiable:
    """A JAX function over flat arrays, callable on tensors and differentiable in reverse mode to any order.

    Args:
        fn: `fn(*arrays) -> sequence of arrays`.
        structs: shape and dtype per argument; symbolic sizes share one scope.
        options: how to lower.
        is_gradient: whether it is the gradient of another one. TensorFlow asks for all gradients of a function, so a graph
            holds ops for some that nobody uses, and runs only the others.
        narrowed: for a function whose gradient cannot be traced with symbols: takes the error, the arguments of a call and
            what traces the gradient; returns the function in which sizes that are known stand in the place of their
            symbols, or raises a DifferentiationError.
    """

    def __init__(
        self,
        fn: Callable[..., Sequence[Any]],
        structs: Sequence[jax.ShapeDtypeStruct],
        options: LoweringOptions,
        is_gradient: bool = False,
        narrowed: Callable[..., Differentiable] | None = None,
    ):
        # One jitted function for all forms: `fn` itself is traced once, whatever is asked of it afterwards.
        self.jitted = jax.jit(lambda *args: tuple(fn(*args)))
        self.structs = tuple(structs)
        self.options = options
        self.lock = threading.RLock()
        self._is_gradient, self._narrowed = is_gradient, narrowed
        self._failure: DifferentiationError | None = None
        #: Indices of the arguments that have a gradient.
        self.wrt = tuple(i for i, struct in enumerate(self.structs) if is_inexact(struct))

    @made_once
    def traced(self) -> jax.stages.Traced:
        traced = self.jitted.trace(*self.structs)
        refuse_too_large(traced.jaxpr)
        check_lengths(traced.jaxpr)
        check_effects(traced.jaxpr)
        return traced

    @made_once
    def plain(self) -> LoweredModule:
        _ = self.traced  # which is refused, if need be, before it is lowered
        return lower(self.jitted, self.structs, self.options)

    @made_once
    def out_structs(self) -> tuple[Any, ...]:
        return tuple(self.traced.out_info)

    @made_once
    def outs_with_gradient(self) -> tuple[int, ...]:
        return tuple(i for i, struct in enumerate(self.out_structs) if is_inexact(struct))

    @made_once
    def refusal(self) -> DifferentiationError | None:
        """Why JAX cannot differentiate the function in reverse mode; None if it can, as far as its primitives say."""
        if not any(map(_may_lack_gradient, equations(self.traced.jaxpr, _lacks_own_derivative))):
            return None
        try:
            _ = self.pullback.traced
        except DifferentiationError as error:
            return error
        return None

    @made_once
    def residual(self) -> ResidualForm:
        return residual_form(self)

    @made_once
    def pullback(self) -> Differentiable:
        """The function `(*args, *cotangents) -> gradients`, itself differentiable."""
        cotangents = [self.out_structs[i] for i in self.outs_with_gradient]
        return Differentiable(self._pullback, [*self.structs, *cotangents], self.options, is_gradient=True)

    def _pullback(self, *args_and_cotangents: Any) -> tuple[Any, ...]:
        args = args_and_cotangents[: len(self.structs)]
        with differentiating():
            _, vjp, _ = self.vjp(args)
            return conjugated(vjp(conjugated(args_and_cotangents[len(self.structs) :])))

    def vjp(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], Callable[..., Any], tuple[Any, ...]]:
        """Returns `jax.vjp` over the differentiable arguments and outputs: those outputs, the closure, the others."""

        def differentiable_part(*varying: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            full = list(args)
            for index, value in zip(self.wrt, varying, strict=True):
                full[index] = value
            outs = self.jitted(*full)
            return tuple(filter(is_inexact, outs)), tuple(out for out in outs if not is_inexact(out))

        return jax.vjp(differentiable_part, *(args[i] for i in self.wrt), has_aux=True)

    def __call__(self, args: Sequence[Any], wanted: Sequence[bool] | None = None, run: Run = run_here) -> list[Any]:
        """Runs the function on tensors, one per argument, and returns one tensor per output.

        Args:
            args: a tensor per argument.
            wanted: of which arguments the gradient will be used, as far as one can know: all gradients are right, but
                without one that is wanted the forward pass runs again, and those that are not wanted are computed apart
                from the others. None: those that a tape records, which is not known for the arguments of a `tf.function`
                under an outer tape.
            run: runs a module.
        """
        args, run = list(args), functools.partial(run, may_be_pruned=self._is_gradient)
        if not self.wrt or not self.outs_with_gradient:
            return run(self.plain, args)
        saved_pullback = kept_pullback(self) if self.refusal is None else None
        if saved_pullback is not None:
            return self._with_gradient(
                run(self.plain, args), (), args, lambda _, xs, cts: list(saved_pullback(*xs, *cts))
            )
        wanted = self.recorded(args) if wanted is None else wanted
        if any(wanted[i] for i in self.wrt):
            part = tuple(i for i in self.wrt if wanted[i])
            try:
                chosen = self._differentiable(args, lambda function: function.residual.backward(part))
            except DifferentiationError as error:
                return self.without_gradient(args, str(error), run)
            return chosen._call_with_residuals(args, part, run)
        return self._call_plain(args, run)

    def _differentiable(self, args: Sequence[Any], prepare: Callable[[Differentiable], object]) -> Differentiable:
        """Returns this function, or what `narrowed` makes of it, once `prepare` has traced its gradient.

        Raises:
            DifferentiationError: the gradient of neither can be traced.
        """
        if self._failure is None:
            try:
                prepare(self)
                return self
            except DifferentiationError as error:
                self._failure = error
        if self._narrowed is None:
            raise self._failure
        return self._narrowed(self._failure, args, prepare)

    @staticmethod
    def recorded(args: Sequence[Any]) -> tuple[bool, ...]:
        """Returns which tensors a tape records; outside of a graph, where nothing is pruned, all if it records one."""
        if tf.executing_eagerly():
            return (_tf_private.is_recorded(args),) * len(args)
        return tuple([_tf_private.is_recorded([arg]) for arg in args])

    def without_gradient(self, args: Sequence[Any], message: str, run: Run = run_here) -> list[Any]:
        """Runs the function on tensors; asking for a gradient raises with `message`."""
        outs = run(self.plain, args)
        graph = tf.compat.v1.get_default_graph()
        if not self.wrt:
            return outs
        refused = lambda _, xs, __: _refused_gradients([xs[i] for i in self.wrt], message, graph)
        return self._with_gradient(outs, (), args, refused)

    def _call_plain(self, args: Sequence[Any], run: Run) -> list[Any]:
        """Runs the function; its gradient, of which nobody knows yet whether it is asked for, runs it again."""
        graph = tf.compat.v1.get_default_graph()

        def backward(_: Any, xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            try:
                chosen = self._differentiable(xs, lambda function: function.pullback.traced)
            except DifferentiationError as error:
                if self.refusal is None:
                    raise
                return _refused_gradients([xs[i] for i in self.wrt], str(error), graph)
            return chosen.pullback([*xs, *cts], run=run)

        return self._with_gradient(run(self.plain, args), (), args, backward)

    def _call_with_residuals(self, args: Sequence[Any], wanted: tuple[int, ...], run: Run) -> list[Any]:
        form, others = self.residual, tuple(i for i in self.wrt if i not in wanted)
        results = run(form.forward, args)
        count = len(self.out_structs)
        outs, residuals = results[:count], results[count:]

        def backward(residuals: Sequence[Any], xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            values = [*residuals, *(xs[i] for i in form.used_args), *cts]
            grads: dict[int, Any] = {}
            for part in filter(None, (wanted, others)):
                grads.update(zip(part, run(form.backward(part), values, may_be_pruned=True), strict=True))
            again = self.pullback
            return _attach_gradient(
                [grads[i] for i in self.wrt],
                (),
                [*xs, *cts],
                lambda _, both, cts2: again.scatter(again.pullback([*both, *cts2], run=run)),
            )

        return self._with_gradient(outs, residuals, args, backward)

    def _with_gradient(
        self, outs: list[Any], residuals: Sequence[Any], args: Sequence[Any], backward: Callable[..., list[Any]]
    ) -> list[Any]:
        """Returns `outs` with a gradient for those that have one."""
        tied = _attach_gradient(
            [outs[i] for i in self.outs_with_gradient],
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


def _attach_gradient(
    outs: Sequence[Any], residuals: Sequence[Any], args: Sequence[Any], backward: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Returns `outs`, whose gradient with respect to `args` is `backward(residuals, args, cotangents)`.

    Args:
        outs: outputs that nothing differentiates: with two tapes around a function TensorFlow asks for the gradients of all
            that its graph captured.
        residuals: likewise.
        args: the arguments.
        backward: the gradient.
    """
    split_1, split_2 = len(outs), len(outs) + len(residuals)

    @tf.custom_gradient
    def tie(*tensors: Any) -> Any:
        saved, xs = tensors[split_1:split_2], tensors[split_2:]

        def grad(*cotangents: Any) -> list[Any]:
            # `tf.gather` and its like send sparse cotangents.
            return [None] * split_2 + list(backward(saved, xs, [tf.convert_to_tensor(ct) for ct in cotangents]))

        return tensors[:split_1], grad

    return list(tie(*outs, *residuals, *tf.identity_n(args)))


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
