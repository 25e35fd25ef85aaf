"""The platforms that functions are lowered for."""

#: What `jax.export` calls them.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
