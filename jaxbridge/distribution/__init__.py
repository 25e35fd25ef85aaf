"""Floor 3: layouts of Keras variables by their paths, on `keras.distribution`."""

from jaxbridge.distribution.layout_map import layout_map_scope as layout_map_scope
from jaxbridge.distribution.native import backend_layout as backend_layout
from jaxbridge.distribution.native import backend_mesh as backend_mesh
from jaxbridge.distribution.native import keras_layout as keras_layout
from jaxbridge.distribution.native import keras_mesh as keras_mesh
from jaxbridge.distribution.native import layout_of as layout_of
