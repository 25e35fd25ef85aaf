"""The platforms that functions are lowered for."""

from __future__ import annotations

import tensorflow as tf

from jaxbridge.core.platforms import PLATFORMS as PLATFORMS


def default_platforms() -> tuple[str, ...]:
    """Returns the platform that TensorFlow sees, in JAX's spelling, and "cpu"."""
    if tf.config.list_logical_devices("TPU"):
        return ("cpu", "tpu")
    if tf.config.list_logical_devices("GPU"):
        return ("cpu", "rocm" if tf.test.is_built_with_rocm() else "cuda")
    return ("cpu",)
