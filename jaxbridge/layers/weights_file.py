"""Weights in Keras' files: by path, with the seed state beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.distribution.native import assign_placed
from jaxbridge.errors import StructureError
from jaxbridge.layers.variables import check_values

#: No variable's path has this name: paths hold no dots.
_SEED_STATE = "seed_generator.state"


def write(store: Any, variables: Mapping[str, keras.Variable], seed_state: keras.Variable | None) -> None:
    """Writes variables into a Keras weight store under flat keys: slashes would be folders, which cannot be listed.

    Where several processes hold parts of a variable, all of them must call this.
    """
    check_values(variables.values())
    whole = backends.current().host_value
    for path, variable in variables.items():
        store[path.replace("/", ".")] = whole(variable.value)
    if seed_state is not None:
        store[_SEED_STATE] = whole(seed_state.value)


def read(
    store: Any, variables: Mapping[str, keras.Variable], seed_state: keras.Variable | None, layer_name: str
) -> None:
    """Reads what `write` wrote. Everything is compared before one variable is written.

    Raises:
        StructureError: variables are missing or unexpected, or a shape differs.
    """
    keys = list(store.keys())
    wanted = {path.replace("/", "."): variable for path, variable in variables.items()}
    if keys and all(key.isdigit() for key in keys):
        # A file of keras.layers.JaxLayer or FlaxLayer: by index, params before state, each in the order of its leaves.
        if len(keys) != len(wanted):
            raise StructureError(
                f"Layer '{layer_name}' has {len(wanted)} variables and the file, written by index, has {len(keys)}: "
                f"{', '.join(variables)}."
            )
        wanted = {str(index): variable for index, variable in enumerate(wanted.values())}
    missing = [key for key in wanted if key not in keys]
    unexpected = [key for key in keys if key not in wanted and key != _SEED_STATE]
    if missing or unexpected:
        raise StructureError(
            f"The file does not fit layer '{layer_name}'. Missing in the file: {_listed(missing)}. "
            f"Unexpected in the file: {_listed(unexpected)}."
        )
    if seed_state is not None and _SEED_STATE in keys:
        wanted = {**wanted, _SEED_STATE: seed_state}
    stored = {key: store[key] for key in wanted}
    for key, variable in wanted.items():
        # Before it is read: a dataset of HDF5 may state any size, and takes no space in the file.
        want, have = tuple(variable.shape), tuple(stored[key].shape)
        if have != want:
            raise StructureError(f"'{key}' of layer '{layer_name}' has shape {want} and the file has {have}.")
    values = {key: np.asarray(value) for key, value in stored.items()}
    for key, variable in wanted.items():
        if variable is seed_state:
            variable.assign(values[key])
        else:
            assign_placed(variable, values[key])


def _listed(keys: list[str]) -> str:
    return ", ".join(key.replace(".", "/") for key in keys) or "nothing"
