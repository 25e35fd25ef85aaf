"""The residual form of a function: a forward pass that also returns what the backward pass needs (the leaves of `jax.vjp`'s
closure), and the backward pass. Both are traced under one symbolic scope, so that residuals with symbolic sizes fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbridge.core.dims import symbols_in
from jaxbridge.errors import DifferentiationError
from jaxbridge.jax2tf.lowering import LoweredModule, lower

if TYPE_CHECKING:
    from jaxbridge.jax2tf.gradients import Differentiable


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


def is_inexact(value: Any) -> bool:
    """Returns whether a value is of a floating or complex dtype, and so has a gradient."""
    return jnp.issubdtype(value.dtype, jnp.inexact)


@contextlib.contextmanager
def differentiating() -> Iterator[None]:
    """Returns a context in which what JAX raises while it differentiates becomes a DifferentiationError."""
    try:
        yield
    except DifferentiationError:
        raise
    except Exception as error:  # ValueError, NotImplementedError, TypeError ... by primitive
        is_loop = "while_loop" in str(error)
        instead = "Write `lax.fori_loop` with fixed bounds, `lax.scan`, or give it" if is_loop else "Give it"
        raise DifferentiationError(
            f"JAX cannot differentiate this function in reverse mode: {error} {instead} a rule with `jax.custom_vjp`; convert "
            "it with `with_gradient=False` or call it through `tf.stop_gradient` where no gradient is needed."
        ) from error


def conjugated(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jnp.conj(v) if jnp.issubdtype(v.dtype, jnp.complexfloating) else v for v in values)


def residual_form(function: Differentiable) -> ResidualForm:
    closure: dict[str, Any] = {}

    def forward(*args: Any) -> tuple[Any, ...]:
        with differentiating():
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
        with differentiating():
            return conjugated(vjp(conjugated(cotangents)))

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
