"""Floor 3: layouts of variables and what devices compute together."""

from jaxbridge.distribution.autoshard import Autosharded as Autosharded
from jaxbridge.distribution.autoshard import autoshard as autoshard
from jaxbridge.distribution.collectives import all_gather as all_gather
from jaxbridge.distribution.collectives import all_reduce as all_reduce
from jaxbridge.distribution.collectives import broadcast as broadcast
from jaxbridge.distribution.collectives import reduce_scatter as reduce_scatter
from jaxbridge.distribution.plan import PlannedVariable as PlannedVariable
from jaxbridge.distribution.plan import ShardingPlan as ShardingPlan
from jaxbridge.distribution.processes import gathered as gathered
from jaxbridge.distribution.processes import initialize as initialize
from jaxbridge.distribution.tensor_parallel import join_split_tensor as join_split_tensor
from jaxbridge.distribution.tensor_parallel import split_tensor_for_parallelism as split_tensor_for_parallelism
