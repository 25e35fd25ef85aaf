"""Converts, trains, exports and serves a small model. Started by the doctor, in a process of its own.

A step whose input is missing because of an earlier failure is left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge.export import export_saved_model, serve_without_jax
from jaxbridge.layers.jax_layer import JaxLayer
from jaxbridge_cli import steps

_X = np.linspace(-1, 1, 20, dtype="float32").reshape(5, 4)


def _init(rng: Any, inputs: Any) -> Any:
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 3))}


def _call(params: Any, inputs: Any) -> Any:
    # An exact gelu and top_k with an unknown batch: what version skew breaks first.
    return jax.lax.top_k(jax.nn.gelu(inputs @ params["w"], approximate=False), 2)[0]


def make() -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), JaxLayer(_call, _init, name="net")])


def train(model: keras.Model) -> str:
    model.compile("sgd", "mse")
    # Keras' annotation says that `verbose` is a string.
    history = model.fit(_X, np.zeros((5, 2), "float32"), verbose=0)  # pyright: ignore[reportArgumentType]
    loss = history.history["loss"][-1]
    if not np.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    return "a JaxLayer in a Keras model was fitted"


def convert() -> str:
    from jaxbridge import jax2tf

    function = lambda x: _call({"w": jnp.ones((4, 3))}, x)
    got = jax2tf.convert(function, polymorphic_shapes=["(b, 4)"])(_X)
    np.testing.assert_allclose(got, function(_X), rtol=1e-4, atol=1e-5)
    return "a function with an unknown batch gives in TensorFlow what it gives in JAX"


def export(model: keras.Model, folder: Path) -> str:
    export_saved_model(model, folder / "served", verify=False)
    return "the model was written as a SavedModel"


def serve(model: keras.Model, folder: Path) -> str:
    served = serve_without_jax(folder / "served", [{"x": _X}])[0]["output_0"]
    np.testing.assert_allclose(served, np.asarray(keras.ops.convert_to_numpy(model(_X))), rtol=1e-4, atol=1e-5)
    return "a process without JAX loaded it and gave what the model gives"


def main(with_tensorflow: bool) -> None:
    made: list[keras.Model] = []

    def make_and_train() -> str:
        made.append(make())
        return train(made[0])

    trained = steps.take("train", make_and_train)
    if not with_tensorflow:
        return
    steps.take("convert", convert)
    with tempfile.TemporaryDirectory() as folder:
        if not trained.error and not steps.take("export", lambda: export(made[0], Path(folder))).error:
            steps.take("serve", lambda: serve(made[0], Path(folder)))


if __name__ == "__main__":
    main("--no-tensorflow" not in sys.argv)
