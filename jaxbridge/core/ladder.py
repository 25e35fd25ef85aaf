"""Which symbols a function can be traced with where sizes are unknown, and what to say where it cannot.

One rule for shapes of outputs, calls and exports: the rungs of `rungs`, of which each accepts more functions and fewer sizes.
Where the function is only ever traced at concrete sizes (the JAX backend) two runs at such sizes tell the shapes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbridge.core.helpful_sizes import advice
from jaxbridge.core.shapes import ArraySpec, Signature
from jaxbridge.errors import (
    ConversionError,
    ShapeError,
    ShardingError,
    SignatureError,
    StructureError,
    UnsupportedOperationError,
)

#: Pairs of sizes for unknown dimensions; a size that differs between the two outcomes is unknown.
_PROBES = ((8, 16), (32, 64), (96, 192), (224, 448), (3, 6), (2, 3))

#: What other sizes would not mend.
FINAL = (ConversionError, SignatureError, StructureError, ShardingError, UnsupportedOperationError)

#: From abstract inputs (one per array of the signature) to the abstract outputs.
Trace = Callable[[Sequence[jax.ShapeDtypeStruct]], Any]


def rungs(signature: Signature) -> Iterator[Signature]:
    """Yields the signatures that a function is traced with in turn: every unknown size a symbol of its own; those that the
    user did not name at least 2, first all but the batch; and all of them one symbol, for code that assumes them equal."""
    yield signature
    free = [name for name in signature.symbols() if name not in signature.declared]
    inner = [name for name in free if name not in signature.batches()]
    for names in dict.fromkeys((tuple(inner), tuple(free))):
        if names:
            yield signature.with_constraints(*(f"{name} >= 2" for name in names))
    merged = signature.with_one_symbol()
    if merged is not None:
        yield merged


def first_traceable(trace: Trace, signature: Signature) -> tuple[Signature | None, Any, list[Exception]]:
    """Returns the first rung that a function can be traced at (None: none), what the trace gave, and earlier failures.

    Where no size is unknown, the function's own error is raised as it is.
    """
    failures: list[Exception] = []
    for rung in rungs(signature):
        try:
            return rung, trace(rung.structs()), failures
        except FINAL:
            raise
        except Exception as error:  # whatever the user's function raises at symbolic sizes
            if not signature.symbols():
                raise
            failures.append(error)
    return None, None, failures


def infer_outputs(trace: Trace, signature: Signature, *, concrete_shapes: bool) -> Any:
    """Returns the outputs of a function as a pytree of `ArraySpec`.

    Args:
        trace: from abstract inputs (one per array of the signature) to the abstract outputs.
        signature: shapes and dtypes of the inputs.
        concrete_shapes: whether the function is only ever traced at concrete sizes (the JAX backend).

    Raises:
        ShapeError: no rung holds, though the function can be traced at known sizes. Where it cannot, its own error is raised.
    """
    rung, outputs, failures = first_traceable(trace, signature)
    if rung is not None:
        return _specs(outputs)
    if concrete_shapes:
        for first, second in _PROBES:
            small, large = signature.at(first), signature.at(second)
            if small is None or large is None:
                continue
            try:
                return jax.tree.map(_common, _specs(trace(small.structs())), _specs(trace(large.structs())))
            except Exception as error:  # as above; the next pair may suit
                failures.append(error)
    raise unknown_shape_error(failures[0], signature, trace)


def unknown_shape_error(error: Exception, signature: Signature, trace: Trace) -> Exception:
    """Returns what to raise for a function that cannot be traced with unknown sizes, whose error then is `error`.

    That is a ShapeError with the declaration that helps; where the function fails at known sizes too, its own error there.
    """
    own = own_error(signature, trace)
    if own is not None:
        return own
    names = signature.symbols()
    said = advice(error, signature, lambda other: _works(trace, other)) or (
        f"No sizes were found that fulfil the constraints {', '.join(signature.constraints)}."
    )
    found = ShapeError(
        f"The function cannot be traced for inputs of shapes {', '.join(signature.shapes)}, where "
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} unknown: {type(error).__name__}: {error}\n"
        f"{said} Or give the output's shape with `compute_output_shape_fn=`."
    )
    found.__cause__ = error
    return found


def own_error(signature: Signature, trace: Trace) -> Exception | None:
    """Returns the error of a function that fails at every size that is tried; None where it can be traced at some."""
    first: Exception | None = None
    for concrete in signature.trials():
        try:
            trace(concrete.structs())
        except Exception as error:  # whatever the user's function raises
            first = first or error
        else:
            return None
    return first


def _works(trace: Trace, signature: Signature) -> bool:
    try:
        trace(signature.structs())
    except Exception:  # as above, and declarations that jax.export refuses
        return False
    return True


def _specs(outputs: Any) -> Any:
    return jax.tree.map(
        lambda out: ArraySpec(tuple(d if isinstance(d, int) else None for d in out.shape), out.dtype.name), outputs
    )


def _common(first: ArraySpec, second: ArraySpec) -> ArraySpec:
    if len(first.shape) != len(second.shape) or first.dtype != second.dtype:
        raise ShapeError(f"The rank or dtype of an output depends on unknown sizes: {first} and {second}.")
    return ArraySpec(tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)), first.dtype)
