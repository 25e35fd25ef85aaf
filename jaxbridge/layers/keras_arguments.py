"""The arguments of `keras.layers.Layer`, which every layer takes by its `**kwargs`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from jaxbridge.core.arguments import FLAG, Kind, checked


def _read_by(get: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        try:
            get(value)
        except Exception:  # Keras raises many kinds for what it cannot read
            return False
        return True

    return accepts


REGULARIZER = Kind("a Keras regularizer, its name, or None", _read_by(keras.regularizers.get))
CONSTRAINT = Kind("a Keras constraint, its name, or None", _read_by(keras.constraints.get))

_NAMES = {*inspect.signature(keras.layers.Layer.__init__).parameters} - {"self", "kwargs"} | {
    "input_dim",
    "input_shape",
}
_KINDS = {
    "activity_regularizer": REGULARIZER,
    "autocast": FLAG,
    "dtype": Kind("a dtype or dtype policy of Keras, or None", _read_by(keras.dtype_policies.get)),
    "trainable": Kind("True or False", lambda value: isinstance(value, bool)),
}

#: Decorates the `__init__` of a layer, as `checked` does.
checked_layer = checked(more=_NAMES, **_KINDS)
