"""The platforms that functions are lowered for."""

from __future__ import annotations

import tensorflow as tf

#: What `jax.export` calls them.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def default_platforms() -> tuple[str, ...]:
    """Returns the platform that TensorFlow sees, in JAX's spelling, and "cpu"."""
    if tf.config.list_logical_devices("TPU"):
        return ("cpu", "tpu")
    if tf.config.list_logical_devices("GPU"):
        return ("cpu", "rocm" if tf.test.is_built_with_rocm() else "cuda")
    return ("cpu",)
