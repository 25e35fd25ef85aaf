"""What of Keras has no public name. Seen in Keras 3.12 to 3.15; tests/export/test_sizes.py."""

from __future__ import annotations

from typing import Any

import keras


def input_was_made_up(model: keras.Sequential) -> bool:
    """Returns whether nobody gave a Sequential its `Input`: Keras made one, of the shape of the first call.

    The two are `InputLayer`s alike; they differ in the arguments that Keras has kept. `keras.Input` gives a shape, or a whole
    shape and no dtype; Sequential gives a whole shape with the dtype of the first layer, and no name.
    """
    layer: Any = model._layers[0]
    kept = getattr(layer, "_auto_config", None)
    if kept is None or layer.output.name == layer.name:
        return False
    arguments = kept.config
    return arguments.get("shape") is None and arguments.get("dtype") is not None
