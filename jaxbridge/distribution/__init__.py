"""Floor 3: layouts of Keras variables by their paths, on `keras.distribution`."""

from jaxbridge.distribution.inferred import CompiledShardings as CompiledShardings
from jaxbridge.distribution.inferred import compiled_shardings as compiled_shardings
from jaxbridge.distribution.layout_map import layout_map_scope as layout_map_scope
from jaxbridge.distribution.native import backend_layout as backend_layout
from jaxbridge.distribution.native import backend_mesh as backend_mesh
from jaxbridge.distribution.native import keras_layout as keras_layout
from jaxbridge.distribution.native import keras_mesh as keras_mesh
from jaxbridge.distribution.native import layout_of as layout_of
from jaxbridge.distribution.report import LayoutReport as LayoutReport
from jaxbridge.distribution.report import LayoutRow as LayoutRow
from jaxbridge.distribution.report import describe_layouts as describe_layouts
