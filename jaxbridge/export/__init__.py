"""Floor 5: Keras models as SavedModels that TensorFlow serves without JAX."""

from jaxbridge.export.dtensor import dtensor_variables as dtensor_variables
from jaxbridge.export.load_jax import LoadedModel as LoadedModel
from jaxbridge.export.load_jax import load_jax as load_jax
from jaxbridge.export.saved_model import ExportReport as ExportReport
from jaxbridge.export.saved_model import export_saved_model as export_saved_model
from jaxbridge.export.serving import serve_without_jax as serve_without_jax
from jaxbridge.export.sharding import read_sharding as read_sharding
