"""Converts, trains, exports and serves a small model. Started by the doctor, in a process of its own.

Prints "STEP " and JSON per step; a step whose input is missing because of an earlier failure is left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge.export import export_saved_model, serve_without_jax
from jaxbridge.layers.jax_layer import JaxLayer

_X = np.linspace(-1, 1, 20, dtype="float32").reshape(5, 4)


def _init(rng: Any, inputs: Any) -> Any:
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 3))}


def _call(params: Any, inputs: Any) -> Any:
    # An exact gelu and top_k with an unknown batch: what version skew breaks first.
    return jax.lax.top_k(jax.nn.gelu(inputs @ params["w"], approximate=False), 2)[0]


def train() -> tuple[str, keras.Model]:
    model = keras.Sequential([keras.Input((4,), name="x"), JaxLayer(_call, _init, name="net")])
    model.compile("sgd", "mse")
    # Keras' annotation says that `verbose` is a string.
    history = model.fit(_X, np.zeros((5, 2), "float32"), verbose=0)  # pyright: ignore[reportArgumentType]
    loss = history.history["loss"][-1]
    if not np.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    return "a JaxLayer in a Keras model was fitted", model


def convert() -> tuple[str, None]:
    from jaxbridge import jax2tf

    function = lambda x: _call({"w": jnp.ones((4, 3))}, x)
    got = jax2tf.convert(function, polymorphic_shapes=["(b, 4)"])(_X)
    np.testing.assert_allclose(got, function(_X), rtol=1e-4, atol=1e-5)
    return "a function with an unknown batch gives in TensorFlow what it gives in JAX", None


def export(model: keras.Model, folder: Path) -> tuple[str, None]:
    export_saved_model(model, folder / "served", verify=False)
    return "the model was written as a SavedModel", None


def serve(model: keras.Model, folder: Path) -> tuple[str, None]:
    served = serve_without_jax(folder / "served", [{"x": _X}])[0]["output_0"]
    np.testing.assert_allclose(served, np.asarray(keras.ops.convert_to_numpy(model(_X))), rtol=1e-4, atol=1e-5)
    return "a process without JAX loaded it and gave what the model gives", None


def step(name: str, function: Callable[[], tuple[str, Any]]) -> tuple[bool, Any]:
    """Runs a step, prints its verdict and returns whether it worked, and its result."""
    error, detail, result = "", "", None
    try:
        detail, result = function()
    except Exception as failure:  # the verdict is the message
        error = f"{type(failure).__name__}: {' '.join(str(failure).split())[:1000]}"
    print("STEP " + json.dumps({"name": name, "error": error, "detail": detail}), flush=True)
    return not error, result


def main(with_tensorflow: bool) -> None:
    works, model = step("train", train)
    if not with_tensorflow:
        return
    step("convert", convert)
    with tempfile.TemporaryDirectory() as folder:
        if works and step("export", lambda: export(model, Path(folder)))[0]:
            step("serve", lambda: serve(model, Path(folder)))


if __name__ == "__main__":
    main("--no-tensorflow" not in sys.argv)
