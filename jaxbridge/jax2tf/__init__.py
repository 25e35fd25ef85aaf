"""Floor 2: JAX functions as TensorFlow functions. Takes the place of `jax.experimental.jax2tf`.

from jaxbridge import jax2tf          # instead of: from jax.experimental import jax2tf
"""

from jax.export import DisabledSafetyCheck as DisabledSafetyCheck

from jaxbridge._optional import require as _require

_require("tensorflow", "jaxbridge.jax2tf")

from jaxbridge.jax2tf.convert import convert as convert  # noqa: E402
from jaxbridge.jax2tf.patch import install as install  # noqa: E402
from jaxbridge.jax2tf.patch import patch as patch  # noqa: E402
from jaxbridge.jax2tf.patch import uninstall as uninstall  # noqa: E402
