"""Converts, fits, exports and serves the models of the support matrix, in one environment on one Keras backend.

Started by `support_matrix.py`; the argument is a folder to work in. Prints one line of JSON: model -> step -> "" or the error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

import jaxbridge
from tests import cases

MODELS = ("params", "state", "rng_and_state", "dicts", "fours", "custom_vjp", "haiku", "cnn", "transformer", "lstm")
STEPS = ("converted", "fitted", "exported", "served")
SERVE = Path(__file__).resolve().parents[1] / "tests" / "export" / "serve_all.py"

#: float32 sums of up to a hundred terms, in another order.
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def converted(case: cases.Case) -> None:
    from jaxbridge import jax2tf

    args = case.args(3, 8)
    params, state = case.reference_init(jax.random.key(0), args)
    function = lambda *given: case.reference(params, state, None, given, False)[0]
    text = "(b, 4*k)" if case.name == "fours" else "(b, ...)"
    got = jax2tf.convert(function, polymorphic_shapes=[text] * len(args))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), got, function(*args))


def fitted(case: cases.Case, model: keras.Model) -> None:
    x = case.model_input(8)
    y = keras.tree.map_structure(lambda out: np.zeros(out.shape, "float32"), model.predict(x, verbose=0))
    model.compile("sgd", "mse")
    losses = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all(), losses


def exported(case: cases.Case, model: keras.Model, folder: Path) -> dict[str, np.ndarray]:
    options = cases.FOURS if case.name == "fours" else {}
    report = jaxbridge.export_saved_model(model, folder / case.name, verify=False, **options)
    x = case.model_input(5)
    arrays = {f"0/{n}": a for n, a in zip(report.inputs, keras.tree.flatten(x), strict=True)}
    np.savez(folder / f"{case.name}.npz", **arrays)
    outputs = keras.tree.flatten(model.predict(x, verbose=0))
    return dict(zip(report.outputs, outputs, strict=True))


def served(folder: Path, name: str, expected: dict[str, np.ndarray]) -> None:
    with np.load(folder / f"{name}.out.npz") as outputs:
        for key, value in expected.items():
            np.testing.assert_allclose(outputs[f"0/{key}"], value, **TOLERANCE)
        assert any(key.startswith("grad/") for key in outputs.files), "no gradients"


def main(folder: Path) -> None:
    found: dict[str, dict[str, str]] = {name: {} for name in MODELS}
    expected: dict[str, dict[str, np.ndarray]] = {}

    def step(name: str, number: int, function: Any) -> Any:
        """Runs a step of a model, unless an earlier one failed."""
        if number > 1 and any(found[name].get(STEPS[n], "not run") for n in range(1, number)):
            found[name][STEPS[number]] = "not run"
            return None
        found[name][STEPS[number]] = ""
        try:
            return function()
        except Exception as error:
            traceback.print_exc()
            found[name][STEPS[number]] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    for name in MODELS:
        case = cases.BY_NAME[name]
        keras.utils.clear_session()
        step(name, 0, lambda case=case: converted(case))
        model = case.functional(case.layer())
        step(name, 1, lambda case=case, model=model: fitted(case, model))
        expected[name] = step(name, 2, lambda case=case, model=model: exported(case, model, folder)) or {}
    serving = subprocess.run([sys.executable, "-P", SERVE, folder], capture_output=True, text=True, check=False)
    if serving.returncode:
        print(serving.stderr[-3000:], file=sys.stderr)
    for name in MODELS:
        step(name, 3, lambda name=name: served(folder, name, expected[name]))
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
