"""Floor 5: what the compiler makes of a layer or model, and what it costs."""

from jaxbridge.stages.lowering import lower as lower
from jaxbridge.stages.records import Compiled as Compiled
from jaxbridge.stages.records import Lowered as Lowered
from jaxbridge.stages.records import MemoryStats as MemoryStats
from jaxbridge.stages.summary import LayerCost as LayerCost
from jaxbridge.stages.summary import Summary as Summary
from jaxbridge.stages.summary import summary as summary
