"""Follows dimensions through a jaxpr, into loops, branches and inner functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxbridge.core.dimension_rules import RULES, elementwise, is_elementwise, made_of, opaque, rule
from jaxbridge.core.dimensions import Dimensions, Value
from jaxbridge.core.jaxprs import inner_jaxprs


def follow(dims: Dimensions, jaxpr: Any, consts: Sequence[Any], args: Sequence[Value]) -> list[Value]:
    """Follows the dimensions through a jaxpr.

    Args:
        dims: where what is found is collected.
        jaxpr: an open jaxpr.
        consts: the values of its constants, arrays or `Value`.
        args: what is known of its arguments.

    Returns:
        What is known of its results.
    """
    known: dict[Any, Value] = dict(zip(jaxpr.invars, args, strict=True))
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        known[var] = const if isinstance(const, Value) else dims.fresh(var.aval)

    def read(var: Any) -> Value:
        return known[var] if not hasattr(var, "val") else dims.fresh(var.aval)

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, _apply(dims, equation, [read(var) for var in equation.invars]), strict=True))
    return [read(var) for var in jaxpr.outvars]


def _apply(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    if equation.primitive.name in RULES:
        return RULES[equation.primitive.name](dims, equation, args)
    inner = list(inner_jaxprs(equation))
    if len(inner) == 1 and len(_open(inner[0]).invars) == len(args):  # jit, remat, custom_jvp, custom_vjp
        return follow(dims, _open(inner[0]), getattr(inner[0], "consts", ()), args)
    if not inner and is_elementwise(equation):
        return elementwise(dims, equation, args)
    return opaque(dims, equation, args)


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


@rule("scan")
def _scan(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    body, length = equation.params["jaxpr"], equation.params["length"]
    # How many are carried and how many are sliced has another name in every JAX; those that are sliced lose a dimension.
    sliced = _of_lower_rank(equation.invars, body.jaxpr.invars)
    count = len(equation.outvars) - _of_lower_rank(equation.outvars, body.jaxpr.outvars)
    second = len(args) - sliced
    first = second - count
    for arg in args[second:]:
        dims.block(arg.dims[:1], "a loop runs over it")
    # After the first round what is carried depends on all that the loop reads.
    read = made_of(args, ())
    carry = [dataclasses.replace(read, dims=arg.dims, params=frozenset()) for arg in args[first:second]]
    inside = [*args[:first], *carry, *(dataclasses.replace(arg, dims=arg.dims[1:]) for arg in args[second:])]
    times = dims.times
    dims.times = times * length
    results = follow(dims, body.jaxpr, body.consts, inside)
    dims.times = times
    carried = _carried(dims, args[first:second], results[:count])
    stacked = [dataclasses.replace(value, dims=(dims.new(length), *value.dims)) for value in results[count:]]
    return [*carried, *stacked]


def _of_lower_rank(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    return sum(len(a.aval.shape) > len(b.aval.shape) for a, b in zip(outer, inner, strict=True))


@rule("while")
def _while(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    params = equation.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry = args[second:]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    follow(dims, condition.jaxpr, condition.consts, [*args[:first], *carry])
    return _carried(dims, carry, follow(dims, body.jaxpr, body.consts, [*args[first:second], *carry]))


@rule("cond")
def _cond(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    branches = [follow(dims, branch.jaxpr, branch.consts, args[1:]) for branch in equation.params["branches"]]
    results = branches[0]
    for other in branches[1:]:
        results = _carried(dims, results, other)
    return results


def _carried(dims: Dimensions, before: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    """Returns values that are one variable of the program: what one of them is, the other is."""
    for old, new in zip(before, after, strict=True):
        for first, second in zip(old.dims, new.dims, strict=True):
            dims.join(first, second)
    return [made_of((old, new), old.dims) for old, new in zip(before, after, strict=True)]
