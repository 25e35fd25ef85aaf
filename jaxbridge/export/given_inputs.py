"""Inputs that a user gives for the comparison of a SavedModel with its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from jaxbridge.core.arguments import Kind
from jaxbridge.core.tree_paths import leaf_paths
from jaxbridge.errors import ShapeError, SignatureError
from jaxbridge.export.endpoint import Endpoint

_NAME = "verification_inputs"

VERIFICATION_INPUTS = Kind(
    "a list with the inputs of each call, such as [x] where the model takes one array, or None",
    lambda value: (
        value is None
        or (
            isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and not hasattr(value, "shape")
        )
    ),
)


def read_cases(given: Iterable[Any] | None) -> list[Any] | None:
    """Returns the inputs of the calls, also those of a generator; a SignatureError where there are none."""
    if given is None:
        return None
    cases = list(given)
    if not cases:
        raise SignatureError(
            f"`{_NAME}` is empty, so that nothing would be compared. Give the inputs of at least one call; None for made-up "
            "ones; or `verify=False`."
        )
    return cases


def as_arrays(endpoint: Endpoint, number: int, given: Any) -> list[np.ndarray]:
    """Returns the inputs of one call as arrays, in the order of the endpoint's inputs.

    Raises:
        SignatureError: there are other inputs than the model's, or a dtype is not the model's.
        ShapeError: a size does not fit.
    """
    where = f"`{_NAME}[{number}]`"
    arrays = [np.asarray(leaf) for leaf in _in_order(endpoint, given, where)]
    for name, array, dtype in zip(endpoint.names, arrays, endpoint.dtypes, strict=True):
        if not _may_become(array.dtype, dtype):
            raise SignatureError(f"{where}: input '{name}' is {array.dtype.name}, and the model takes {dtype}.")
    try:
        endpoint.signature.check([array.shape for array in arrays])
    except ShapeError as error:
        wanted = ", ".join(f"'{n}' {s}" for n, s in zip(endpoint.names, endpoint.signature.shapes, strict=True))
        raise ShapeError(f"{where}: {error} The inputs of the model are {wanted}.") from error
    return arrays


def _in_order(endpoint: Endpoint, given: Any, where: str) -> list[Any]:
    if isinstance(given, Mapping) and given.keys() == set(endpoint.names):
        return [given[name] for name in endpoint.names]
    leaves, paths, wanted = keras.tree.flatten(given), leaf_paths(given), leaf_paths(endpoint.structure)
    one_in_a_list = len(wanted) == len(leaves) == 1 and not isinstance(given, Mapping)
    if paths != wanted and not one_in_a_list:
        shown = lambda paths: ", ".join(f"'{path}'" for path in paths) if any(paths) else "one array"
        raise SignatureError(
            f"{where} must have the structure of the model's inputs, {shown(wanted)}, or be a mapping of their names "
            f"{', '.join(map(repr, endpoint.names))}; it has {shown(paths)}."
        )
    return leaves


def _may_become(have: np.dtype, wanted: str) -> bool:
    if wanted == "string" or have.kind in "USO":
        return wanted == "string" and have.kind in "USO"
    kinds = [_ORDER[keras.backend.standardize_dtype(name).rstrip("0123456789")] for name in (have.name, wanted)]
    return kinds[0] <= kinds[1]


_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "bfloat": 2, "complex": 3}
