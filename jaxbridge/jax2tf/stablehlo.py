"""Modules as bytes of a chosen StableHLO version, or an error that says which op is too new for it."""

from __future__ import annotations

import functools
import re
import warnings
from typing import TYPE_CHECKING

import jax

from jaxbridge.errors import ConversionError
from jaxbridge.jax2tf import _jax_private
from jaxbridge.jax2tf.keep_nan import keep_nan

if TYPE_CHECKING:
    from jaxbridge.jax2tf.targets import Target

#: The first version whose ops can say how accurate they must be (`result_accuracy`). Older readers know one accuracy.
_FIRST_WITH_ACCURACY = (1, 9, 0)

#: "<where>: error: failed to legalize operation 'vhlo.exponential_v2'", as jaxlib says that an op is too new.
_TOO_NEW = re.compile(
    r"^(?:Detailed error from MLIR: )?(\S+?):(\d+):\d+: error: failed to legalize operation '([^']+)'", re.M
)


#: Modules without these have nothing for `keep_nan`.
_MAY_LOSE_NAN = re.compile(r"stablehlo\.(maximum|minimum|clamp)\b")


def parse_version(version: str) -> tuple[int, ...]:
    """Returns "1.13.7" as (1, 13, 7)."""
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ConversionError(
            f"A target is written like '1.13.0' (a StableHLO version) or 'tensorflow==2.18', got {version!r}."
        )
    return tuple(int(part) for part in parts)


def write(mlir_text: str, target: Target, *, keeps_nan: bool = True, source_info: bool = False) -> tuple[bytes, bool]:
    """Returns a module as bytes that the target reads, and whether they hold annotations of the Shardy partitioner.

    Args:
        mlir_text: the module as `jax.export` gives it.
        target: what to write for. Annotations that it cannot read are left out, with a warning.
        keeps_nan: whether a maximum or minimum is NaN where an operand is.
        source_info: whether files and lines are written, beside the names of scopes.

    Raises:
        ConversionError: an op needs a newer StableHLO than the target reads, or ends the target's process.
    """
    has_shardings = "sdy." in mlir_text
    portable = functools.partial(
        _jax_private.portable_module,
        mlir_text,
        shardings=target.shardy,
        accuracies=parse_version(target.stablehlo) >= _FIRST_WITH_ACCURACY,
        rewrite=keep_nan if keeps_nan and _MAY_LOSE_NAN.search(mlir_text) else None,
    )
    _refuse_dot_algorithms(mlir_text, target)
    text = portable(source_info=source_info)
    if not target.shardy and "sdy.sharding_constraint" in mlir_text:
        warnings.warn(
            f"The sharding constraints of a JAX function are left out: {target.name} cannot read them. The results are the "
            "same, and what layers say of sharding stays on record in the file (`jaxbridge.read_sharding`).",
            stacklevel=2,
        )
    try:
        return _jax_private.serialize_module(text, target.stablehlo), has_shardings and target.shardy
    except jax.errors.JaxRuntimeError as error:
        raise ConversionError(_too_new(portable(source_info=True), target)) from error


def _refuse_dot_algorithms(mlir_text: str, target: Target) -> None:
    if target.dot_algorithms:
        return
    for operation, line in _jax_private.operations_with(mlir_text, "algorithm"):
        raise ConversionError(
            f"`{operation}`{_at(line)} asks for an algorithm of matrix products (`jax.lax.DotAlgorithmPreset`; "
            f"`jax.nn.dot_product_attention` does for 16-bit inputs), and {target.name} ends with a segmentation fault on it. "
            "Ask for a `jax.lax.Precision`, write attention with `jnp.einsum`, or choose a newer target."
        )


def _too_new(located_text: str, target: Target) -> str:
    """Returns the message for a module that cannot be written for the target: which op, from which line."""
    try:
        _jax_private.serialize_module(located_text, target.stablehlo)
    except jax.errors.JaxRuntimeError as error:
        match = _TOO_NEW.search(str(error))
        cause = str(error).splitlines()[0]
    else:
        match, cause = None, "the module without debug locations was refused"
    if match is None:
        return f"A module cannot be written as StableHLO {target.stablehlo} for {target.name}: {cause}"
    file, line, operation = match.groups()
    name = re.sub(r"_v\d+$", "", operation.removeprefix("vhlo."))
    where = _at(f"{file}:{line}" if file != "-" else "")
    return (
        f"`stablehlo.{name}`{where} in this form needs StableHLO {_needed_version(located_text, target)}, and the target "
        f"{target.name} reads {target.stablehlo}. Choose a newer target (and install a TensorFlow that reads it), or write "
        "that line with other ops or dtypes."
    )


def _needed_version(text: str, target: Target) -> str:
    """Returns the oldest StableHLO version that a module can be written in."""
    newest = _jax_private.written_version()
    major, minor, _ = parse_version(target.stablehlo)
    for candidate in [*(f"{major}.{n}.0" for n in range(minor + 1, parse_version(newest)[1] + 1)), newest]:
        try:
            _jax_private.serialize_module(text, candidate)
        except jax.errors.JaxRuntimeError:
            continue
        return candidate
    return f"newer than {newest}"


def _at(line: str) -> str:
    return f" ({line})" if line else ""
