"""Shapes of outputs, asked of JAX without running anything, by a ladder of ways of which each accepts more functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxbridge.core.shapes import ArraySpec, Signature
from jaxbridge.errors import ShapeError, ShardingError, SignatureError, StructureError

#: Pairs of sizes for unknown dimensions; a size that differs between the two outcomes is unknown.
_PROBES = ((8, 16), (32, 64), (96, 192), (224, 448), (3, 6), (2, 3))


def infer_outputs(
    fn: Callable[[Sequence[jax.ShapeDtypeStruct]], Any], signature: Signature, *, concrete_shapes: bool
) -> Any:
    """Returns the outputs of `fn` as a pytree of `ArraySpec`.

    The rungs: every unknown size a symbol of its own; all of them one symbol (for code that assumes them equal); and,
    only where the function will always see concrete sizes, two runs at concrete sizes.

    Args:
        fn: from abstract inputs (one per array of the signature) to the abstract outputs.
        signature: shapes and dtypes of the inputs.
        concrete_shapes: whether the function is only ever traced at concrete sizes (the JAX backend).

    Raises:
        ShapeError: no rung holds. Where no size is unknown, the function's own error is raised as it is.
    """
    if not signature.symbols():
        return _specs(fn(signature.structs()))
    failures: list[Exception] = []
    for symbolic in filter(None, (signature, signature.with_one_symbol())):
        try:
            return _specs(fn(symbolic.structs()))
        except (SignatureError, StructureError, ShardingError):  # nothing that other sizes would mend
            raise
        except Exception as error:  # whatever the user's function raises at symbolic sizes
            failures.append(error)
    if concrete_shapes:
        for first, second in _PROBES:
            small, large = signature.at(first), signature.at(second)
            if small is None or large is None:
                continue
            try:
                return jax.tree.map(_common, _specs(fn(small.structs())), _specs(fn(large.structs())))
            except Exception as error:  # as above; the next pair may suit
                failures.append(error)
    raise unknown_shape_error(failures[0], signature) from failures[-1]


def unknown_shape_error(error: Exception, signature: Signature) -> ShapeError:
    """Returns the error for a function that cannot be traced with unknown sizes, whose own error is `error`."""
    unknown = ", ".join(f"'{name}'" for name in signature.symbols())
    return ShapeError(
        f"The function cannot be traced for inputs of shapes {', '.join(signature.shapes)}, where {unknown} "
        f"{'is' if len(signature.symbols()) == 1 else 'are'} unknown: {type(error).__name__}: {error}\n"
        "Either give the sizes (`keras.Input((28, 28, 1), batch_size=...)`), or say what is known of them "
        "(`polymorphic_shapes='(b, 4*k)'`, `polymorphic_constraints=('k >= 2',)`), or give the output's shape with "
        "`compute_output_shape_fn=`."
    )


def _specs(outputs: Any) -> Any:
    return jax.tree.map(
        lambda out: ArraySpec(tuple(d if isinstance(d, int) else None for d in out.shape), out.dtype.name), outputs
    )


def _common(first: ArraySpec, second: ArraySpec) -> ArraySpec:
    if len(first.shape) != len(second.shape) or first.dtype != second.dtype:
        raise ShapeError(f"The rank or dtype of an output depends on unknown sizes: {first} and {second}.")
    return ArraySpec(tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)), first.dtype)
