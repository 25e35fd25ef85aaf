"""Names that older files have and that this version does not read."""

from __future__ import annotations

from typing import Any

import keras

from jaxbridge.errors import StructureError


@keras.saving.register_keras_serializable(package="jaxbridge")
class Sequential(keras.Sequential):
    """The container of that name, which was removed; it is registered so that a file that holds one can say so."""

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> keras.Sequential:
        """Raises the error that says what to write instead."""
        raise StructureError(
            f"The file holds a `jaxbridge.Sequential` ({config.get('name')!r}), which was removed. Make the model of the same "
            "layers with `keras.Sequential` and load the weights into it (`model.load_weights`): variables have the same paths."
        )
