"""What of Keras has no public name. Seen in Keras 3.12 to 3.15; tests/layers/test_hostile_files.py."""

from __future__ import annotations

from keras.src.saving import serialization_lib


def safe_mode() -> bool | None:
    """Returns the `safe_mode` that Keras loads a file with; None while it loads none.

    Keras hands it to no `from_config`, and has no public name for it: `keras.config.enable_unsafe_deserialization` sets it,
    nothing reads it. `test_keras_says_how_it_loads` fails when this moves.
    """
    return serialization_lib.in_safe_mode()
