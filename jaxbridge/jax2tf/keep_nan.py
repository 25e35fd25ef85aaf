"""Maxima and minima that keep NaN, whatever compiles them.

TensorFlow's XLA runs on CPU with `xla_cpu_enable_fast_min_max` (TensorFlow 2.21): where the second operand of a maximum is
NaN the result is the first, and a reduction depends on where the NaN stands. A comparison and a choice say the same without
that freedom. Done in the module, so that whatever JAX makes a maximum of is covered: reductions, cumulative ones, pooling,
scatter, and what a gradient has of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxbridge.jax2tf import _jax_private

#: Operation -> the comparison that chooses its first operand.
_CHOICES = {"stablehlo.maximum": "GE", "stablehlo.minimum": "LE"}

#: Operations that hold a NaN only if their first operand does.
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "dynamic_broadcast_in_dim", "reshape", "dynamic_reshape", "transpose", "convert")
)

#: Operations whose reducer must be one that the libraries for several devices know.
_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")


def keep_nan(module: Any) -> None:
    """Rewrites the maxima, minima and clamps of floats in a module so that they are NaN where an operand is.

    Where one operand is a constant number (relu, a clip between numbers) the operation stays, with the constant second. Of
    two zeros, which are equal, either may be the result.
    """
    operations = _jax_private.operations(module)
    constants = _Constants(operations)
    for clamp in [operation for operation in operations if operation.name == "stablehlo.clamp"]:
        low, value, high = clamp.operands
        if low.type == value.type == high.type and not (constants.is_number(low) and constants.is_number(high)):
            _jax_private.split_clamp(clamp)
    for operation in _jax_private.operations(module):
        direction = _CHOICES.get(operation.name)
        if direction is None or not _jax_private.is_float(operation.results[0]):
            continue
        if constants.is_number(operation.operands[1]) or operation.parent.name in _COLLECTIVES:
            continue
        if constants.is_number(operation.operands[0]):
            _jax_private.swap_operands(operation)
        else:
            _jax_private.replace_by_choice(operation, direction)


class _Constants:
    """Which values of a module are numbers that are written in it."""

    def __init__(self, operations: Sequence[Any]):
        self._calls = [operation for operation in operations if operation.name == "func.call"]

    def is_number(self, value: Any) -> bool:
        """Returns whether a value is known to hold no NaN."""
        operation, argument = _jax_private.origin(value)
        if argument is not None:
            return self._is_number_at_every_call(operation, argument)
        if operation.name == "stablehlo.constant":
            return not _jax_private.is_float(value) or _jax_private.is_splat_number(operation)
        if operation.name in _MOVES:
            source = operation.operands[0]
            return not _jax_private.is_float(source) or self.is_number(source)
        return False

    def _is_number_at_every_call(self, function: Any, argument: int) -> bool:
        """Returns whether a function always gets a number: JAX passes the bounds of `jnp.clip` to a function."""
        if _jax_private.attribute_text(function, "sym_visibility") != "private":
            return False
        name = _jax_private.attribute_text(function, "sym_name")
        calls = [call for call in self._calls if _jax_private.attribute_text(call, "callee") == name]
        return bool(calls) and all(self.is_number(call.operands[argument]) for call in calls)
