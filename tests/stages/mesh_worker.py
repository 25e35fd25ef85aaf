"""Run by test_processes.py in a process of its own with 8 CPU devices: a mesh of 2 x 4, and models too large for memory.

Prints a JSON object of results.
"""

import json
import sys
from pathlib import Path

import jax
import keras
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbridge
from tests.stages import models
from tests.stages.models import struct


def peak_gib() -> float:
    """Returns the peak memory of this process; not `ru_maxrss`, which starts from that of the process that forked it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def told(compiled) -> dict:
    (variables, inputs), _ = compiled.input_shardings
    text = compiled.as_text()
    return {
        "collectives": sorted(name for name in ("all-reduce", "all-gather", "reduce-scatter") if f" {name}(" in text),
        "variables": {path: [list(s.mesh.shape.items()), list(s.spec)] for path, s in variables.items()},
        "inputs": list(inputs.spec),
        "outputs": list(compiled.output_shardings[0].spec),
        "argument bytes": compiled.memory_analysis().argument_size_in_bytes,
        "flops": compiled.cost_analysis()["flops"],
    }


def distribution() -> keras.distribution.ModelParallel:
    mesh = keras.distribution.DeviceMesh((2, 4), ("data", "model"), [f"cpu:{index}" for index in range(8)])
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*up.*kernel"] = (None, "model")
    layout[".*down.*kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="data")


def main() -> None:
    found = {}
    on_jax = keras.config.backend() == "jax"
    large = {"abstract layer": models.ten_billion_layer} | ({"abstract model": models.ten_billion} if on_jax else {})
    for name, make in large.items():
        lowered = jaxbridge.lower(make, struct(2, 8192))
        found[name] = lowered.compile().memory_analysis().argument_size_in_bytes
        found[f"{name} GiB"] = peak_gib()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    split = jax.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(mesh, P("data", "model")))
    layer = jaxbridge.JaxLayer(lambda inputs: inputs.sum(1), name="sum")
    found["jax mesh"] = told(jaxbridge.lower(layer, split).compile())
    keras.distribution.set_distribution(distribution())
    for name, make in {"layer": models.split_layer, **({"model": models.split_model} if on_jax else {})}.items():
        lowered = jaxbridge.lower(make, struct(8, 16))
        found[name] = told(lowered.compile()) | {
            "global shapes": [list(x.shape) for x in jax.tree.leaves(lowered.args_info)]
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
