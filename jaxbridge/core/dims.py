"""Sizes written as text, such as "4*k" or "floordiv(t, 2)": parsed, evaluated and solved for their symbols.

`jax.export` reads the same language (its documentation: "Shape polymorphism"); what is here evaluates it for sizes that
may be integers or the scalar tensors of any backend, which JAX has no public function for.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbridge.errors import ShapeError

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
# max and min without a comparison that a graph tensor could not answer.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": lambda a, b: (a + b + abs(a - b)) // 2,
    "min": lambda a, b: (a + b - abs(a - b)) // 2,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


def split_shape(text: str) -> list[str]:
    """Returns the sizes of a shape written as "(b, t, 3)", "b, t, 3" or "(b, ...)", each as text."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def join_shape(sizes: Sequence[str]) -> str:
    """Returns sizes as one shape text: the inverse of `split_shape`."""
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def symbols_in(text: str) -> list[str]:
    """Returns the symbols of a size or constraint, in order, each once."""
    names = re.findall(r"[A-Za-z_]\w*", text)
    return list(dict.fromkeys(name for name in names if name not in _FUNCTIONS and name != "_"))


def substituted(text: str, env: Mapping[str, str]) -> str:
    """Returns a size or constraint with these texts in the place of its symbols."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: env.get(found[0], found[0]), text)


def evaluate(text: str, env: Mapping[str, Any]) -> Any:
    """Returns the value of a size such as "4*k + 1" where `env` gives the values of its symbols."""
    return _evaluate(_parsed(text), env)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.AST:
    try:
        # `jax.export` writes and reads powers as `b^2`.
        return ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except SyntaxError as error:
        raise _unreadable(text) from error


def _unreadable(text: str) -> ShapeError:
    return ShapeError(f"The size {text!r} cannot be read. Write for instance `b`, `4*k`, `t + 1` or `3`.")


def _evaluate(node: ast.AST, env: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if name in env:
            return env[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, env), _evaluate(right, env))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(operand, env))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return functools.reduce(_FUNCTIONS[name], (_evaluate(arg, env) for arg in args))
        case ast.Name(id=name):
            raise unsolved(name)
    raise _unreadable(ast.unparse(node))


def unsolved(name: str) -> ShapeError:
    """Returns the error for a symbol whose value the shapes do not give."""
    return ShapeError(
        f"The value of the symbol '{name}' does not follow from the shapes. Declare it where it stands alone or in a "
        f"size that is linear in it, such as `{name}`, `4*{name}` or `{name} + 1`."
    )


def split_constraint(text: str) -> tuple[str, str, str]:
    """Returns the left side, the comparison and the right side of a constraint such as "k >= 2"."""
    for comparison in _COMPARISONS:
        left, found, right = text.partition(comparison)
        if found and left.strip() and right.strip():
            return left.strip(), comparison, right.strip()
    raise ShapeError(f"The constraint {text!r} cannot be read. Write for instance 'k >= 2', 't <= 512' or 'a == 2*b'.")


def holds(constraint: str, env: Mapping[str, Any]) -> Any:
    """Returns whether a constraint holds: a bool for integers, a scalar tensor for tensors."""
    left, comparison, right = split_constraint(constraint)
    return _COMPARISONS[comparison](evaluate(left, env), evaluate(right, env))


def solve(texts: Sequence[Sequence[str]], sizes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Returns the values of the symbols, from shapes whose sizes are known.

    Args:
        texts: the sizes of each shape, as text.
        sizes: the sizes of each shape: integers or scalar integer tensors.

    The rule is that of `jax.export`: a symbol is read from a size that is linear in it, with a number as its factor, once
    all other symbols of that size are known. The caller checks afterwards that every size has the value that the symbols
    give it.
    """
    env: dict[str, Any] = {}
    left = [
        (text, size) for shape, row in zip(texts, sizes, strict=True) for text, size in zip(shape, row, strict=True)
    ]
    left.sort(key=lambda pair: not pair[0].isidentifier())  # what stands alone needs no division
    progress = True
    while progress:
        progress = False
        for text, size in left:
            parts = _linear(_parsed(text), env)
            if parts is None or len(parts[0]) != 1:
                continue
            ((name, factor),) = parts[0].items()
            env[name] = size if (factor, parts[1]) == (1, 0) else (size - parts[1]) // factor
            progress = True
    return env


def _linear(node: ast.AST, env: Mapping[str, Any]) -> tuple[dict[str, int], Any] | None:
    """Returns the factors of the unknown symbols of a size, and the rest of it; None where it is not linear in them."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - _FUNCTIONS.keys()
    if names <= env.keys():
        return {}, _evaluate(node, env)
    match node:
        case ast.Name(id=name):
            return {name: 1}, 0
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            return _combined(ast.Constant(0), op, operand, env)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _combined(left, op, right, env)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            if _number(left) is None:
                left, right = right, left
            factor, parts = _number(left), _linear(right, env)
            if factor is None or parts is None:
                return None
            return {name: factor * n for name, n in parts[0].items() if factor * n}, factor * parts[1]
    return None


def _combined(left: ast.AST, op: ast.AST, right: ast.AST, env: Mapping[str, Any]) -> tuple[dict[str, int], Any] | None:
    one, other = _linear(left, env), _linear(right, env)
    if one is None or other is None:
        return None
    sign = -1 if isinstance(op, ast.Sub | ast.USub) else 1
    factors = {name: one[0].get(name, 0) + sign * other[0].get(name, 0) for name in {**one[0], **other[0]}}
    return {name: factor for name, factor in factors.items() if factor}, one[1] + sign * other[1]


def _number(node: ast.AST) -> int | None:
    """Returns the value of a size without symbols; None where it has some."""
    return None if any(isinstance(part, ast.Name) for part in ast.walk(node)) else _evaluate(node, {})
