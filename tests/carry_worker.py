"""Reads the SavedModels of a folder in a process with 8 devices: `python -m tests.carry_worker FOLDER`; prints JSON.

Each was written in a process with one device. What is printed of each is judged by `tests/export/test_carry.py`.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jaxbridge
from jaxbridge.core import records
from jaxbridge.errors import JaxBridgeError
from jaxbridge.export import _jax_private, _tf_private

MESHES = ({"data": 2, "model": 4}, {"data": 4, "model": 2}, {"data": 1, "model": 1})


def reference(kernels: list[Any], biases: list[Any], x: Any, transposed: bool) -> Any:
    first, second = (kernel.T if transposed else kernel for kernel in kernels)
    return jnp.tanh(x @ first + biases[0]) @ second + biases[1]


def graph(path: Path) -> dict[str, Any]:
    """What the SavedModel's graph says, whoever wrote it."""
    ops = list(_tf_private.nodes(path, "XlaCallModule"))
    inside = [_jax_private.module_sharding(op.attr["module"].s) for op in ops]
    texts = [op.attr["_jaxbridge_sharding"].s.decode() for op in ops]
    recorded = [r for text in texts if text for r in records.from_json(text)]
    return {
        "constraints": [module.constraints for module, text in zip(inside, texts, strict=True) if text],
        "backward": max((len(m.constraints) for m, text in zip(inside, texts, strict=True) if not text), default=0),
        "meshes": [mesh for module in inside for mesh in module.meshes],
        "params": sorted({path for record in recorded for path, _ in record.params}),
    }


def on_mesh(path: Path, mesh: dict[str, int], x: np.ndarray, transposed: bool) -> dict[str, Any]:
    """Runs the model on a mesh: forward and gradient, inputs that are not split."""
    loaded = jaxbridge.load_jax(path, mesh)
    names = sorted(loaded.params)
    kernels = [name for name in names if loaded.params[name].ndim == 2]
    biases = [name for name in names if loaded.params[name].ndim == 1]
    values = jax.device_get(loaded.params)
    forward = jax.jit(loaded.__call__)
    outputs = forward(loaded.params, x)
    gradient = jax.jit(jax.grad(lambda params: (loaded(params, x) ** 2).sum()))(loaded.params)

    def loss(kernels: list[Any], biases: list[Any]) -> Any:
        return (reference(kernels, biases, x, transposed) ** 2).sum()

    wanted = jax.grad(loss)([values[name] for name in kernels], [values[name] for name in biases])
    expected = reference([values[name] for name in kernels], [values[name] for name in biases], x, transposed)
    compiled = forward.lower(loaded.params, x).compile().as_text()
    shard = lambda array: list(array.addressable_shards[0].data.shape)
    return {
        "error": float(np.abs(outputs - expected).max()),
        "gradient_error": max(float(np.abs(gradient[n] - w).max()) for n, w in zip(kernels, wanted, strict=True)),
        "kernels": [shard(loaded.params[name]) for name in kernels],
        "gradients": [shard(gradient[name]) for name in kernels],
        "output": shard(outputs),
        "dots": sorted(set(re.findall(r"= f32\[([\d,]+)\]\S* dot\(", compiled))),
        "all_reduce": "all-reduce(" in compiled,
    }


def dtensors(path: Path) -> dict[str, Any]:
    mesh = tf.experimental.dtensor.create_mesh([("data", 2), ("model", 4)], devices=[f"CPU:{i}" for i in range(8)])
    found = jaxbridge.dtensor_variables(path, mesh)
    values = _tf_private.variables(path)
    same = all(
        np.array_equal(tf.experimental.dtensor.relayout(v.read_value(), tf.experimental.dtensor.Layout.replicated(mesh, v.shape.rank)).numpy(), values[n])
        for n, v in found.items()
    )  # fmt: skip
    shards = {n: tf.experimental.dtensor.unpack(v.read_value())[0].shape.as_list() for n, v in found.items()}
    return {"shards": shards, "same": same}


def attempt(run: Any) -> Any:
    try:
        return run()
    except JaxBridgeError as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def main(folder: Path) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    assert jax.device_count() == 8
    x = np.load(folder / "x.npy")
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*/*")):
        facts = json.loads((path.parent / "case.json").read_text())
        row = found.setdefault(path.parent.name, {}) if path.is_dir() else {}
        if not path.is_dir():
            continue
        row[path.name] = {"graph": graph(path), "read": attempt(lambda path=path: str(jaxbridge.read_sharding(path)))}
        if path.name == "ours":
            row["meshes"] = [attempt(lambda m=m, path=path: on_mesh(path, m, x, facts["transposed"])) for m in MESHES]
            row["dtensors"] = attempt(lambda path=path: dtensors(path))
            row["errors"] = {
                "other axes": attempt(lambda path=path: jaxbridge.load_jax(path, {"rows": 2, "model": 4})),
                "too few devices": attempt(lambda path=path: jaxbridge.load_jax(path, {"data": 4, "model": 4})),
                "indivisible": attempt(lambda path=path: jaxbridge.load_jax(path, {"data": 1, "model": 3})),
                "other layer": attempt(lambda path=path: jaxbridge.load_jax(path, layer="m/nothing")),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
