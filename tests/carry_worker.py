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
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbridge
from jaxbridge import jax2tf
from jaxbridge.core import records
from jaxbridge.errors import JaxBridgeError
from jaxbridge.export import _jax_private, _tf_private
from jaxbridge.export.load_jax import _on_mesh

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
    dtensor = tf.experimental.dtensor
    whole = lambda v: dtensor.relayout(v.read_value(), dtensor.Layout.replicated(mesh, v.shape.rank)).numpy()
    same = all(np.array_equal(whole(variable), values[name]) for name, variable in found.items())
    shards = {n: tf.experimental.dtensor.unpack(v.read_value())[0].shape.as_list() for n, v in found.items()}
    return {"shards": shards, "same": same}


def conversions() -> dict[str, Any]:
    """Functions that name shardings themselves, through `jax2tf.convert`, where JAX has 8 devices."""
    devices = np.array(jax.devices()).reshape(2, 4)
    auto, explicit = Mesh(devices, ("data", "model")), jax.make_mesh((2, 4), ("data", "model"))
    on = lambda mesh, *axes: NamedSharding(mesh, P(*axes))
    w, x = np.ones((4, 8), "float32"), np.ones((8, 4), "float32")
    product = lambda w, x: x @ w
    split = jax.jit(
        product, in_shardings=(on(auto, None, "model"), on(auto, "data")), out_shardings=on(auto, "data", "model")
    )
    resharded = lambda w, x: jnp.einsum("ij,jk->ik", x, jax.sharding.reshard(w, on(explicit, None, "model")))
    mapped = jax.shard_map(product, mesh=auto, in_specs=(P(), P("data")), out_specs=P("data"))
    manual = jax.export.export(jax.jit(mapped))(w, x)
    cpu = [f"CPU:{index}" for index in range(8)]
    mesh = tf.experimental.dtensor.create_mesh([("data", 2), ("model", 4)], devices=cpu)
    layout = tf.experimental.dtensor.Layout(["unsharded", "model"], mesh)
    whole = tf.experimental.dtensor.copy_to_mesh(tf.constant(w), layout.replicated(mesh, 2))
    in_mesh = lambda: tf.function(jax2tf.convert(resharded), autograph=False)(w, x)

    def gradient() -> Any:
        v = tf.constant(w)
        with tf.GradientTape() as tape:
            tape.watch(v)
            loss = tf.reduce_sum(jax2tf.convert(split)(v, x))
        return tape.gradient(loss, v)

    with jax.set_mesh(explicit):
        inside = attempt(lambda: {"right": bool(np.allclose(in_mesh(), x @ w))})
    run = lambda fn, w: attempt(lambda: {"right": bool(np.allclose(fn(w, x), x @ np.asarray(w)))})
    return {
        "jit with in_shardings": run(jax2tf.convert(split), w),
        "jit with in_shardings, in a graph": run(tf.function(jax2tf.convert(split), autograph=False), w),
        "jit with in_shardings, unknown batch": run(jax2tf.convert(split, polymorphic_shapes=[None, "(2*b, 4)"]), w),
        "jit with in_shardings, gradient": attempt(lambda: {"right": bool(np.allclose(gradient(), 8))}),
        "explicit axes": run(jax2tf.convert(resharded), w),
        "explicit axes, in their mesh": inside,
        "shard_map": run(jax2tf.convert(mapped), w),
        "shard_map, on another mesh": attempt(lambda: str(_on_mesh(manual, dict(auto.shape), {"data": 1, "model": 1}))),
        "DTensor": run(jax2tf.convert(product), tf.experimental.dtensor.relayout(whole, layout)),
    }


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
            row["meshes"] = [
                attempt(lambda m=m, path=path, t=facts["transposed"]: on_mesh(path, m, x, t)) for m in MESHES
            ]
            row["dtensors"] = attempt(lambda path=path: dtensors(path))
            row["errors"] = {
                "other axes": attempt(lambda path=path: jaxbridge.load_jax(path, {"rows": 2, "model": 4})),
                "too few devices": attempt(lambda path=path: jaxbridge.load_jax(path, {"data": 4, "model": 4})),
                "indivisible": attempt(lambda path=path: jaxbridge.load_jax(path, {"data": 1, "model": 3})),
                "other layer": attempt(lambda path=path: jaxbridge.load_jax(path, layer="m/nothing")),
            }
    found["conversions"] = conversions()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
