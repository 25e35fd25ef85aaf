"""One of two processes with four devices each: `python -m tests.distribution.process_worker MODE INDEX PORT FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import keras
import numpy as np

import jaxbridge
from jaxbridge.distribution import gathered, initialize
from jaxbridge.export import export_saved_model

#: Seconds; a lost process is noticed within twice the second.
TIMEOUT, HEARTBEAT_TIMEOUT = 60, 10
ROWS, EPOCHS = 16, 2


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.BatchNorm(use_running_average=not training, name="norm")(nn.Dense(32, False, name="up")(x))
        x = nn.Dropout(0.25, deterministic=not training)(nn.tanh(x))
        return nn.Dense(8, name="down")(x)


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8,), name="x"),
        jaxbridge.FlaxLayer(Net(), name="net", seed=3),
        keras.layers.Dense(8, name="last"),
    ]
    model = keras.Sequential(layers, name="model")
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 8)).astype("float32"), rng.normal(size=(ROWS, 8)).astype("float32")


def fit(model: keras.Model, rows: slice = slice(None)) -> list[float]:
    """Fits on this process' rows of every batch."""
    x, y = (each[rows] for each in data())
    history = model.fit(x, y, batch_size=len(x), epochs=EPOCHS, shuffle=False, verbose=0)
    return history.history["loss"]


def layouts(shape: tuple[int, int]) -> keras.distribution.ModelParallel:
    """Returns the distribution; names start anew, which must be before it is in effect: Keras forgets it with them."""
    keras.utils.clear_session(free_memory=False)
    mesh = keras.distribution.DeviceMesh(shape, ["data", "model"])
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["model/net/params/up/kernel"] = (None, "model")
    layout_map["model/net/(params|batch_stats)/.*/(bias|scale|mean|var)"] = ("model",)
    layout_map["model/net/params/down/kernel"] = ("model", None)
    layout_map["model/last/kernel"] = (None, "model")
    return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data", auto_shard_dataset=False)


def kernel_of(model: keras.Model) -> keras.Variable:
    return next(v for v in model.variables if v.path == "model/net/params/up/kernel")


def shards(variable: keras.Variable) -> list[int]:
    """Returns how many shards there are, and how many of them are in this process."""
    return [len(variable.value.sharding.device_set), len(variable.value.addressable_shards)]


def train(index: int, folder: Path) -> dict[str, Any]:
    """Fits with shards in both processes, saves, exports, and loads on another mesh."""
    found: dict[str, Any] = {"devices": jax.device_count()}
    with layouts((1, 8)).scope():
        model = make_model()
        found["losses 1x8"] = fit(model)
        found["shards"] = shards(kernel_of(model))
        # A bridge layer gathers its own; a native layer of Keras does not.
        store: dict[str, Any] = {}
        model.layers[0].save_own_variables(store)
        found["stored"] = {key: list(np.shape(value)) for key, value in store.items()}
        with gathered(model):
            if index == 0:
                model.save(folder / "model.keras")
                report = export_saved_model(model, folder / "served")
                found["exported"] = report.verification.max_difference
        found["distribution is back"] = keras.distribution.distribution() is not None
        found["still sharded"] = shards(kernel_of(model))
    jax.experimental.multihost_utils.sync_global_devices("saved")
    with layouts((2, 4)).scope():
        other = make_model()
        rows = slice(index * ROWS // 2, (index + 1) * ROWS // 2)
        found["losses 2x4"] = fit(other, rows)
        other.load_weights(folder / "model.keras")
        with gathered(other):
            values = {v.path: np.asarray(v.value) for v in other.variables}
        np.savez(folder / f"loaded{index}.npz", **{path.replace("/", "."): value for path, value in values.items()})
    return found


def count_until_lost(index: int) -> None:
    """Computes with the other process, until one of the two kills itself in the middle."""
    with layouts((1, 8)).scope():
        model = make_model()
        for step in range(10_000):
            fit(model)
            if step == 1:
                print("in the middle", flush=True)
                if index == 1:
                    os.kill(os.getpid(), signal.SIGKILL)


def main(mode: str, index: int, port: str, folder: Path) -> None:
    limits = {"timeout": 5 if mode == "late" else TIMEOUT, "heartbeat_timeout": HEARTBEAT_TIMEOUT}
    initialize(f"localhost:{port}", 2, index, seed=0, **limits)
    if mode == "train":
        (folder / f"found{index}.json").write_text(json.dumps(train(index, folder)), encoding="utf-8")
    else:
        count_until_lost(index)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
