"""The parts of a packed value, each of the type that it must have: whatever a file says, an error of ours names the place."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbridge.errors import StructureError

#: Deeper than any config that was seen (a module in lists in modules: 40), less than what Python's stack takes.
MAX_DEPTH = 100

#: Dimensions of an array, as numpy has them.
_MAX_RANK = 64
_MAX_SIZE = 2**48


class Parts:
    """A dict of a config, of which parts are asked for.

    Args:
        packed: the dict.
        where: how errors name it.
        depth: how deep in the config it stands.
    """

    def __init__(self, packed: dict[Any, Any], where: str, depth: int):
        self.packed = packed
        self.where = where
        self.depth = depth

    def get(self, name: str, *types: type) -> Any:
        """Returns a part of one of these types.

        Raises:
            StructureError: it is missing, or of another type.
        """
        if name not in self.packed:
            raise StructureError(f"{self.where}: the file is damaged: '{name}' is missing.")
        return of_type(self.packed[name], types, f"{self.where}, '{name}'")

    def text(self, name: str) -> str:
        """Returns a part that is a string."""
        return self.get(name, str)

    def optional_text(self, name: str) -> str | None:
        """Returns a part that is a string, or None."""
        return self.get(name, str, type(None)) if name in self.packed else None


def of_type(value: Any, types: tuple[type, ...], where: str) -> Any:
    """Returns a value that is exactly of one of these types (a bool is no int); a StructureError if it is not."""
    if type(value) not in types:
        wanted = " or ".join("nothing" if t is type(None) else t.__name__ for t in types)
        raise StructureError(f"{where}: the file is damaged: it has {value!r:.80} where {wanted} must be.")
    return value


def check_depth(depth: int, where: str) -> None:
    """Raises a StructureError for what is nested too deep to be read."""
    if depth > MAX_DEPTH:
        raise StructureError(f"{where[:200]}: the file nests values more than {MAX_DEPTH} deep, which is not read.")


def check_keys(packed: dict[Any, Any], where: str) -> None:
    """Raises a StructureError if a key is no string."""
    for key in packed:
        of_type(key, (str,), f"{where}, the key {key!r:.80}")


def shape_of(value: Any, where: str, unknown: bool = False) -> tuple[Any, ...]:
    """Returns a shape that a file states.

    Args:
        value: what should be a list of sizes.
        where: how errors name it.
        unknown: whether a size may be None.

    Raises:
        StructureError: it is no shape.
    """
    sizes = of_type(value, (list, tuple), where)
    ok = lambda size: (unknown and size is None) or (type(size) is int and 0 <= size <= _MAX_SIZE)
    if len(sizes) > _MAX_RANK or not all(map(ok, sizes)):
        raise StructureError(f"{where}: the file is damaged: {value!r:.80} is not the shape of an array.")
    return tuple(sizes)


def dtype_of(value: Any, where: str) -> np.dtype[Any]:
    """Returns a dtype of numbers by its name; a StructureError for any other (`np.dtype("V4000000000")` exists)."""
    name = of_type(value, (str,), where)
    if name not in dtypes():
        raise StructureError(f"{where}: the file names the dtype {name!r:.80}, which JAX does not have.")
    return dtypes()[name]


@functools.cache
def dtypes() -> dict[str, np.dtype[Any]]:
    """Returns the dtypes that arrays of JAX have, by name."""
    found = [np.dtype(value.dtype) for value in vars(jnp).values() if is_scalar_type(value)]
    return {dtype.name: dtype for dtype in found}


def is_scalar_type(value: Any) -> bool:
    """Returns whether a value is `jnp.float32` or one of its kind, which are no classes."""
    name = getattr(value, "__name__", "")
    return isinstance(getattr(value, "dtype", None), np.dtype) and name == value.dtype.name


def bytes_of(shape: tuple[int | None, ...], dtype: np.dtype[Any]) -> int:
    """Returns the memory that an array takes, unknown sizes and those of 0 counted as 1."""
    return math.prod(size or 1 for size in shape) * dtype.itemsize


def placeholder(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an array of zeros, NaN where they are floats, until weights are loaded in its place; it takes no memory."""
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    fill = np.nan if jnp.issubdtype(dtype, np.inexact) else 0
    return np.broadcast_to(np.asarray(fill, dtype), shape)
