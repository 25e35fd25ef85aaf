"""Which keys of a LayoutMap match a path. How a key is read is Keras' business: it changed from search to fullmatch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from jaxbridge.errors import ShardingError


class Match(NamedTuple):
    """The layout that somebody asked for by name.

    Attributes:
        layout: a TensorLayout or a layout of the backend.
        source: "LayoutMap", "scope" or "distribution".
        key: the key that matched; for a distribution with rules of its own, the name of its class.
    """

    layout: Any
    source: str
    key: str


def matching_keys(layout_map: keras.distribution.LayoutMap, names: Sequence[str]) -> list[str]:
    """Returns the keys that match any of the names: those that are equal to one, else those that match as expressions."""
    keys = list(layout_map)
    return [key for key in keys if key in names] or [key for key in keys if _matches(layout_map, key, names)]


def one_key(layout_map: keras.distribution.LayoutMap, path: str, names: Sequence[str]) -> str | None:
    """Returns the key that matches, or None.

    Args:
        layout_map: the map.
        path: what the variable is called in an error.
        names: all that it is known by.

    Raises:
        ShardingError: several keys match.
    """
    keys = matching_keys(layout_map, names)
    if len(keys) > 1:
        raise ShardingError(
            f"'{path}' matches {len(keys)} keys of the LayoutMap: {', '.join(map(repr, keys))}. Make the expressions narrower, "
            "or add the path itself as a key: an exact key goes before expressions."
        )
    return keys[0] if keys else None


def _matches(layout_map: keras.distribution.LayoutMap, key: str, names: Sequence[str]) -> bool:
    alone = keras.distribution.LayoutMap(layout_map.device_mesh)
    alone[key] = layout_map[key]
    try:
        return any(alone[name] is not None for name in names)
    except re.error as error:
        raise ShardingError(f"The LayoutMap key '{key}' is no regular expression: {error}.") from error
