"""Floor 3: layouts of Keras variables by their paths, on `keras.distribution`, and what devices compute together."""

from jaxbridge.distribution.autoshard import Autosharded as Autosharded
from jaxbridge.distribution.autoshard import autoshard as autoshard
from jaxbridge.distribution.collectives import all_gather as all_gather
from jaxbridge.distribution.collectives import all_reduce as all_reduce
from jaxbridge.distribution.collectives import broadcast as broadcast
from jaxbridge.distribution.collectives import reduce_scatter as reduce_scatter
from jaxbridge.distribution.inferred import CompiledShardings as CompiledShardings
from jaxbridge.distribution.inferred import compiled_shardings as compiled_shardings
from jaxbridge.distribution.layout_map import layout_map_scope as layout_map_scope
from jaxbridge.distribution.native import backend_layout as backend_layout
from jaxbridge.distribution.native import backend_mesh as backend_mesh
from jaxbridge.distribution.native import keras_layout as keras_layout
from jaxbridge.distribution.native import keras_mesh as keras_mesh
from jaxbridge.distribution.native import layout_of as layout_of
from jaxbridge.distribution.plan import PlannedVariable as PlannedVariable
from jaxbridge.distribution.plan import ShardingPlan as ShardingPlan
from jaxbridge.distribution.processes import gathered as gathered
from jaxbridge.distribution.processes import initialize as initialize
from jaxbridge.distribution.report import LayoutReport as LayoutReport
from jaxbridge.distribution.report import LayoutRow as LayoutRow
from jaxbridge.distribution.report import describe_layouts as describe_layouts
from jaxbridge.distribution.tensor_parallel import join_split_tensor as join_split_tensor
from jaxbridge.distribution.tensor_parallel import split_tensor_for_parallelism as split_tensor_for_parallelism
