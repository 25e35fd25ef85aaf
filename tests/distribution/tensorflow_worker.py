"""Writes what layouts do on Keras' TensorFlow backend: `python -m tests.distribution.tensorflow_worker FILE`.

In a process of its own: DTensor and its logical devices are made before anything is computed, and once.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import flax.linen as nn
import keras
import numpy as np
import tensorflow as tf

import jaxbridge
from jaxbridge.distribution import (
    backend_layout,
    backend_mesh,
    compiled_shardings,
    describe_layouts,
    keras_layout,
    keras_mesh,
    layout_map_scope,
    layout_of,
)
from tests.distribution.checks import message


def device_mesh(shape: tuple[int, ...] = (2, 4), names: tuple[str, ...] = ("data", "model")) -> Any:
    return keras.distribution.DeviceMesh(shape, names, [f"cpu:{n}" for n in range(int(np.prod(shape)))])


def native() -> dict[str, Any]:
    dtensor = tf.experimental.dtensor
    mesh = device_mesh()
    layout = keras.distribution.TensorLayout((None, "model"), mesh)
    ours = backend_layout(layout)
    variable = dtensor.DVariable(dtensor.call_with_layout(tf.ones, ours, (16, 32)))
    back = keras_layout(dtensor.Layout(["data", dtensor.UNSHARDED], backend_mesh(mesh)))
    product = keras.distribution.TensorLayout((None,), mesh)
    product._axes = (("data", "model"),)
    return {
        "kind": type(backend_mesh(mesh)).__name__,
        "sizes": dict(zip(backend_mesh(mesh).dim_names, backend_mesh(mesh).shape(), strict=True)),
        "cached": backend_mesh(mesh) is backend_mesh(device_mesh()) and ours is backend_layout(layout),
        "layout": [type(ours).__name__, list(ours.sharding_specs)],
        "shards": sorted({tuple(part.shape) for part in dtensor.unpack(variable.read_value())}),
        "back": [list(back.axes), list(back.device_mesh.shape), list(back.device_mesh.axis_names)],
        "devices_back": list(keras_mesh(backend_mesh(mesh)).devices.flat) == list(mesh.devices.flat),
        "product": message(lambda: backend_layout(product)),
        "few": message(lambda: backend_mesh(device_mesh((16,), ("x",)))),
        "no_layout": message(lambda: keras_layout("nothing")),
    }


def without_effect() -> dict[str, Any]:
    mesh = device_mesh()
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*kernel"] = (None, "model")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map))
        layers = [jaxbridge.FlaxLayer(nn.Dense(8), name=name) for name in ("a", "b")]
        model = keras.Sequential([keras.Input((16,)), *layers], name="m")
        model.compile("sgd", "mse")
        losses = model.fit(np.ones((8, 16)), np.ones((8, 8)), epochs=2, verbose=0).history["loss"]
        with layout_map_scope(layout_map):
            jaxbridge.FlaxLayer(nn.Dense(8), name="c").build((8, 16))
        keras.distribution.set_distribution(None)
        report = describe_layouts(model)
    return {
        "warnings": [str(warning.message) for warning in caught if "distribut" in str(warning.message)],
        "fell": losses[1] < losses[0],
        "layouts": [layout_of(variable) for variable in model.weights],
        "bytes": report.device_bytes - sum(row.device_bytes for row in report.rows if not row.path.startswith("m/")),
        "compiled": message(lambda: compiled_shardings(model, np.ones((8, 16)))),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({"native": native(), "without_effect": without_effect()}))
