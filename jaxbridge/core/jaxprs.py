"""Looking into jaxprs: their equations, and the arrays that a function closed over."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxbridge.errors import ConversionError

#: A TensorFlow graph is a protocol buffer, which holds no more; a module with larger constants could not be written.
GRAPH_LIMIT_BYTES = 2**31 - 1

#: Closed-over arrays of fewer bytes are taken for constants that are meant (tables, masks, position encodings).
WARN_ABOVE_BYTES = 2**20


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs that an equation holds (of jit, scan, cond, custom_vjp, ...)."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if hasattr(inner, "eqns") or hasattr(getattr(inner, "jaxpr", None), "eqns"):
                yield inner


def equations(jaxpr: Any, enter: Callable[[Any], bool] = lambda equation: True) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of the jaxprs inside those equations that `enter` says yes to."""
    for equation in jaxpr.eqns:
        yield equation
        if enter(equation):
            for inner in inner_jaxprs(equation):
                yield from equations(inner, enter)


def check_lengths(jaxpr: Any) -> None:
    """Raises JAX's own error where a scan has an unknown length that may be 0: JAX asks when it lowers one (0.10 to 0.12)."""
    for equation in equations(jaxpr):
        if equation.primitive.name == "scan" and not isinstance(equation.params["length"], int):
            _ = equation.params["length"] // equation.params["unroll"] >= 1


def closed_over_arrays(jaxpr: Any) -> list[Any]:
    """Returns the arrays that became constants of a jaxpr, each once."""
    found = list(getattr(jaxpr, "consts", ()))
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            found += closed_over_arrays(inner)
    return list({id(array): array for array in found if hasattr(array, "shape")}.values())


def warn_closed_over(jaxpr: Any) -> None:
    """Warns of closed-over arrays that are large enough to be weights."""
    large = [array for array in closed_over_arrays(jaxpr) if _bytes(array) > WARN_ABOVE_BYTES]
    if large:
        warnings.warn(
            f"A function closes over arrays of {_described(large)}. They are constants of the compiled function: they are not "
            f"trained, not saved as weights, and are written into every exported graph. {_INSTEAD}",
            stacklevel=3,
        )


def refuse_too_large(jaxpr: Any) -> None:
    """Raises if the arrays that a function closes over do not fit into a TensorFlow graph.

    Args:
        jaxpr: the function's closed jaxpr.

    Raises:
        ConversionError: their bytes are more than a protocol buffer holds (2 GiB); nothing has been lowered yet.
    """
    arrays = closed_over_arrays(jaxpr)
    if sum(map(_bytes, arrays)) > GRAPH_LIMIT_BYTES:
        raise ConversionError(
            f"A function closes over arrays of {_described(arrays)}; a TensorFlow graph, which holds them as constants, is "
            f"limited to {GRAPH_LIMIT_BYTES / 2**20:.0f} MiB. {_INSTEAD}"
        )


_INSTEAD = (
    "Pass them as arguments: as `params` or `state` of a JaxLayer, as parameters of a module, as arguments of a converted "
    "function."
)


def _described(arrays: list[Any]) -> str:
    """Returns the size of all and the shapes of the first few, the largest first."""
    arrays = sorted(arrays, key=_bytes, reverse=True)
    shapes = ", ".join(f"{np.dtype(array.dtype).name}{list(array.shape)}" for array in arrays[:5] if _bytes(array))
    return f"{sum(map(_bytes, arrays)) / 2**20:.1f} MiB ({shapes}{', ...' if len(arrays) > 5 else ''})"


def _bytes(array: Any) -> int:
    try:
        return int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
    except TypeError:  # extended dtypes (PRNG keys) have no item size
        return 0


def depends_on(jaxpr: Any, indices: set[int]) -> set[int]:
    """Returns the positions of those outputs of a jaxpr that its inputs at `indices` may have an influence on."""
    tainted = {id(jaxpr.invars[index]) for index in indices}
    for equation in jaxpr.eqns:
        read = {index for index, var in enumerate(equation.invars) if id(var) in tainted}
        if not read:
            continue
        inner = getattr(equation.params.get("jaxpr"), "jaxpr", None)
        is_call = equation.primitive.name in ("jit", "pjit") and inner is not None
        outputs = depends_on(inner, read) if is_call else range(len(equation.outvars))
        tainted.update(id(equation.outvars[index]) for index in outputs)
    return {index for index, var in enumerate(jaxpr.outvars) if id(var) in tainted}
