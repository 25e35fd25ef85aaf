"""JAX code inside Keras, on its JAX and TensorFlow backends, out to SavedModels."""

from jaxbridge import _optional

_optional.import_keras()

from jaxbridge.core.partition import Sharding as Sharding
from jaxbridge.export import ExportReport as ExportReport
from jaxbridge.export import dtensor_variables as dtensor_variables
from jaxbridge.export import export_saved_model as export_saved_model
from jaxbridge.export import load_jax as load_jax
from jaxbridge.export import read_sharding as read_sharding
from jaxbridge.export import serve_without_jax as serve_without_jax
from jaxbridge.layers.flax_layer import FlaxLayer as FlaxLayer
from jaxbridge.layers.jax_layer import JaxLayer as JaxLayer
from jaxbridge.layers.module_layer import ModuleLayer as ModuleLayer
from jaxbridge.layers.removed import Sequential as _RemovedSequential  # noqa: F401 (registers its name for older files)
from jaxbridge.stages import lower as lower
from jaxbridge.stages import summary as summary
