"""JAX code inside Keras, on its JAX and TensorFlow backends, out to SavedModels."""

from jaxbridge._command import is_command

if is_command():
    from jaxbridge._command import public_name as __getattr__  # noqa: F401 (called for a name that is not here)
else:
    from jaxbridge._public import *  # noqa: F403 (its names are listed there)
