"""`jax.export` that gives only modules which TensorFlow can run, or says at once why there is none."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax.export

from jaxbridge.errors import UnsupportedOperationError
from jaxbridge.jax2tf import _jax_private
from jaxbridge.jax2tf.audit import Missing, missing_calls
from jaxbridge.jax2tf.effects import located_equations, place
from jaxbridge.jax2tf.linear_algebra import INSTEAD, PORTABLE_RULES, tridiagonal_solve_rule


def portable_export(
    jitted: Any, structs: Sequence[Any], platforms: Sequence[str] | None, disabled_checks: Sequence[Any]
) -> jax.export.Exported:
    """Returns `jax.export.export` of a function, with custom calls only that TensorFlow has.

    JAX's own lowering is tried first. Where the audit finds custom calls that TensorFlow lacks, the portable rules of
    linear algebra take their place; all other modules are those that `jax.export` writes.

    Args:
        jitted: a `jax.jit` function.
        structs: shape and dtype per argument.
        platforms: the platforms to lower for; None for JAX's default backend.
        disabled_checks: `jax.export.DisabledSafetyCheck`s; a custom call named there is the user's own affair.

    Raises:
        UnsupportedOperationError: the function holds something that TensorFlow cannot run.
    """
    jaxpr = jitted.trace(*structs).jaxpr
    debug_rules = _jax_private.silent_debug_rules()  # `check_effects` has warned of them
    allowed = {target for check in disabled_checks if (target := check.is_custom_call())}

    def attempt(rules: list[Any]) -> tuple[jax.export.Exported, list[Missing]]:
        export = functools.partial(
            _jax_private.export_with_rules, jitted, structs, disabled_checks=disabled_checks, rules=rules
        )
        exported = export(platforms)
        missing = _missing(exported, allowed)
        if missing and len(exported.platforms) > 1:
            # JAX may have written a branch per platform: a custom call of one platform is not missing on another.
            missing = [found for platform in exported.platforms for found in _missing(export((platform,)), allowed)]
        return exported, missing

    try:
        exported, missing = attempt(debug_rules)
    except NotImplementedError:  # no rule for one of the platforms, or one that does not take these parameters
        exported, missing = None, []
    if exported is None or missing:
        try:
            exported, missing = attempt([*debug_rules, *_portable_rules()])
        except Exception as error:  # whatever a rule says of sizes or parameters that it does not take
            raise _lowering_error(jaxpr, missing, error) from error
        if missing:
            raise _missing_error(jaxpr, missing)
    return exported


@functools.cache
def _portable_rules() -> list[tuple[Any, Any]]:
    return _jax_private.linear_algebra_rules(PORTABLE_RULES, {"tridiagonal_solve": tridiagonal_solve_rule})


def _missing(exported: jax.export.Exported, allowed: set[str]) -> list[Missing]:
    return missing_calls(_jax_private.custom_calls(exported.mlir_module()), exported.platforms, allowed)


def _missing_error(jaxpr: Any, missing: Sequence[Missing]) -> UnsupportedOperationError:
    target, primitive, _ = missing[0]
    platforms = ", ".join(dict.fromkeys(found.platform for found in missing if found.target == target))
    instead = INSTEAD.get(primitive) or (
        "Write it with operations that need no custom call. If the TensorFlow that will run this has "
        f"'{target}' registered, say so with `jax.export.DisabledSafetyCheck.custom_call('{target}')`, as one of "
        "`native_serialization_disabled_checks` of `jax2tf.convert`."
    )
    return UnsupportedOperationError(
        f"{_place_of(jaxpr, primitive)} becomes the custom call '{target}', which TensorFlow does not have "
        f"on {platforms}, and there is no portable rule for it. {instead} Or compute it in JAX, outside of what is "
        "converted."
    )


def _lowering_error(jaxpr: Any, missing: Sequence[Missing], error: Exception) -> Exception:
    """Returns what to raise where the portable rules, the last resort, fail."""
    if not missing and not isinstance(error, NotImplementedError):
        return error
    named = re.search(
        r"primitive '(\w+)'", str(error)
    )  # JAX: "MLIR translation rule for primitive 'eig' not found ..."
    primitive = named[1] if named else missing[0].primitive if missing else ""
    instead = INSTEAD.get(primitive) or (
        "Where it is about sizes: matrices (the last two axes) need fixed ones, batch axes may be unknown."
    )
    return UnsupportedOperationError(
        f"{_place_of(jaxpr, primitive)} cannot be lowered to what TensorFlow runs: {error} {instead} Or compute it in "
        "JAX, outside of what is converted."
    )


def _place_of(jaxpr: Any, primitive: str) -> str:
    """Returns the primitive and the line that it was written on, as the start of a message."""
    written = "qr" if primitive == "geqp3" else primitive  # JAX lowers `qr` with pivoting to it
    lines = (line for equation, line in located_equations(jaxpr) if equation.primitive.name == written)
    return place(primitive, next(lines, "")) if primitive else "An operation"
