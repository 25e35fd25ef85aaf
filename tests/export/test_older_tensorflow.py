"""An export written for TensorFlow 2.18 is served by TensorFlow 2.18, in an environment that holds nothing else of ours."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import JaxLayer, export_saved_model

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import _environments  # noqa: E402

from tests.export.models import bridge, mixed  # noqa: E402


@pytest.fixture(scope="module")
def tensorflow_2_18(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tf2.18")
    return _environments.make(folder / "venv", "3.11", ["tensorflow-cpu==2.18.*", "setuptools<80"])


def sorting() -> keras.Model:
    import jax

    def call(inputs):
        values, places = jax.lax.top_k(jax.nn.gelu(jnp.sinh(inputs), approximate=False), 3)
        return values + places + jax.lax.erf_inv(jnp.tanh(jnp.cumsum(values, 1)) * 0.9)

    x = keras.Input((4,), name="x")
    return keras.Model(x, JaxLayer(call, name="net")(x), name="m")


MODELS = {"bridge": bridge, "mixed": mixed, "sorting": sorting}


@pytest.mark.slow
def test_served_by_tensorflow_2_18(tensorflow_2_18, tmp_path):
    """With gradients. float32 of two releases of XLA: the last places differ."""
    expected = {}
    for name, make in MODELS.items():
        model = make()
        report = export_saved_model(model, tmp_path / name, target="tensorflow==2.18")
        arrays = {
            n: np.random.default_rng(0).normal(size=(3, 6, 4)[3 - len(s) :] if len(s) == 3 else (3, s[-1]))
            for n, (s, _) in report.inputs.items()
        }
        arrays = {n: array.astype("float32") for n, array in arrays.items()}
        np.savez(tmp_path / f"{name}.npz", **{f"0/{n}": array for n, array in arrays.items()})
        outputs = model(arrays if name == "mixed" else arrays["x"])
        expected[name] = dict(
            zip(report.outputs, map(keras.ops.convert_to_numpy, keras.tree.flatten(outputs)), strict=True)
        )
    serving = subprocess.run(
        [str(tensorflow_2_18), "-P", str(ROOT / "tests" / "export" / "serve_all.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert serving.returncode == 0, serving.stderr[-3000:]
    for name, outputs in expected.items():
        with np.load(tmp_path / f"{name}.out.npz") as served:
            for key, value in outputs.items():
                np.testing.assert_allclose(served[f"0/{key}"], value, rtol=1e-4, atol=1e-5, err_msg=name)
            if name != "sorting":  # which has no weights
                assert any(key.startswith("grad/") for key in served.files), name
