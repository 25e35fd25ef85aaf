"""A JAX function over a flat list of arrays, lowered with `jax.export` to bytes that TensorFlow reads."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.export

from jaxbridge.errors import ShardingError
from jaxbridge.jax2tf import _jax_private, stablehlo, targets
from jaxbridge.jax2tf.portable import portable_export
from jaxbridge.jax2tf.statistics import count


@dataclasses.dataclass(frozen=True)
class LoweringOptions:
    """How functions are lowered.

    Attributes:
        platforms: such as ("cpu", "cuda"); None for JAX's default backend.
        disabled_checks: safety checks of `jax.export` to leave out.
        target: what to write for, as `targets.resolve` takes it; None for the installed TensorFlow.
        nan: one of `NAN`: whether maxima and minima keep NaN, as they do in JAX, or run as TensorFlow runs them.
        source_info: whether files and lines of the function are written, beside the names of its scopes.
    """

    platforms: tuple[str, ...] | None = None
    disabled_checks: tuple[Any, ...] = ()
    target: str | None = None
    nan: str = "keep"
    source_info: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredModule:
    """A lowered function.

    Attributes:
        serialized: the portable StableHLO artifact.
        in_avals: shape and dtype per argument; sizes may be symbolic.
        out_avals: shape and dtype per result; sizes may be symbolic.
        kept: indices of the arguments that the module takes; the others are unused.
        platforms: the platforms it was lowered for.
        calling_convention: version of `jax.export`'s calling convention.
        disabled_checks: the checks left out, for the op.
        has_shardings: whether it holds annotations of the Shardy partitioner.
    """

    serialized: bytes
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    kept: tuple[int, ...]
    platforms: tuple[str, ...]
    calling_convention: int
    disabled_checks: tuple[str, ...]
    has_shardings: bool


@contextlib.contextmanager
def _explicit_axes_explained() -> Iterator[None]:
    """Returns a context in which JAX's error for a mesh with explicit axes says what to do."""
    try:
        yield
    except ValueError as error:
        if "Length of device assignment" not in str(error):
            raise
        raise ShardingError(
            f"The function names a mesh whose axes are of the type Explicit (`jax.make_mesh` makes such), and it is converted "
            f"outside of it. Convert it inside `jax.set_mesh(mesh)`, or use axes of the type Auto "
            f"(`jax.sharding.Mesh(devices, names)`). JAX says: {error}"
        ) from error


def lower(jitted: Any, structs: Sequence[jax.ShapeDtypeStruct], options: LoweringOptions) -> LoweredModule:
    """Lowers a `jax.jit` function over flat arrays, which returns a tuple of arrays, for these shapes and dtypes."""
    count("lowerings")
    target = targets.resolve(options.target)
    with _jax_private.calling_convention(target.calling_convention), _explicit_axes_explained():
        exported = portable_export(jitted, structs, options.platforms, options.disabled_checks)
    serialized, has_shardings = stablehlo.write(
        exported.mlir_module(), target, keeps_nan=options.nan == "keep", source_info=options.source_info
    )
    return LoweredModule(
        serialized=serialized,
        in_avals=tuple(exported.in_avals),
        out_avals=tuple(exported.out_avals),
        kept=tuple(exported.module_kept_var_idx),
        platforms=tuple(exported.platforms),
        calling_convention=exported.calling_convention_version,
        disabled_checks=tuple(map(str, options.disabled_checks)),
        has_shardings=has_shardings,
    )
