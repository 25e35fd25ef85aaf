"""Properties of every exported model. All are served by one process that cannot import JAX."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

from jaxbridge import export_saved_model
from tests.export.models import CASES

ON_JAX = keras.config.backend() == "jax"


class Exported:
    """A model, what it gives, its export, and what that gives when served."""

    def __init__(self, name: str, folder: Path):
        self.case = case = CASES[name]
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        self.model = model = case.make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.report = export_saved_model(model, folder / name, verify=False, **case.options)
        self.warnings = [str(w.message) for w in caught if "without gradients" in str(w.message)]
        np.savez(
            folder / f"{name}.npz", **{f"{i}/{k}": v for i, call in enumerate(case.calls) for k, v in call.items()}
        )
        self.training = {"training": True} if case.options.get("training") else {}
        self.gradients = (
            gradients_of(model, case.pack(case.calls[0]), self.training) if model.trainable_variables else {}
        )
        self.outputs = [self.called(call) for call in case.calls]

    def called(self, call):
        outputs = self.model(self.case.pack(call), **self.training)
        return {k: to_numpy(v) for k, v in zip(self.case.outputs, keras.tree.flatten(outputs), strict=True)}

    def read(self, folder: Path, name: str):
        with np.load(folder / f"{name}.out.npz") as file:
            self.served = {key: file[key] for key in file.files}
        self.facts = json.loads((folder / f"{name}.json").read_text())


def to_numpy(tensor):
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32") if dtype == "bfloat16" else tensor)


def gradients_of(model, inputs, training):
    """The gradient of the sum of the squares of the float outputs, by the path of the variable; nothing is written."""
    trainable = [v.value for v in model.trainable_variables]
    other = [v.value for v in model.non_trainable_variables]
    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)

    def loss(values):
        outputs, _ = model.stateless_call(values, other, inputs, **training)
        floats = [y for y in keras.tree.flatten(outputs) if keras.backend.is_float_dtype(y.dtype)]
        return sum(keras.ops.sum(keras.ops.cast(y, "float32") ** 2) for y in floats)

    if ON_JAX:
        gradients = jax.grad(loss)(trainable)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(trainable)
            value = loss([tf.identity(v) for v in model.trainable_variables])
        gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
    return {
        v.path: to_numpy(keras.ops.convert_to_tensor(g))
        for v, g in zip(model.trainable_variables, gradients, strict=True)
    }


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    made = {name: Exported(name, folder) for name in CASES}
    command = [sys.executable, "-P", str(Path(__file__).with_name("serve_all.py")), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    for name, export in made.items():
        export.read(folder, name)
    return made


@pytest.fixture(params=CASES)
def export(request, exports):
    return exports[request.param]


def tolerance(export, of_gradients: bool = False):
    dtypes = [keras.backend.standardize_dtype(v.dtype) for v in export.model.variables]
    if (
        "float16" in dtypes
        or "bfloat16" in dtypes
        or "mixed" in str([x.dtype_policy.name for x in export.model.layers])
    ):
        return {"rtol": 0.1, "atol": 0.1}
    return {"rtol": 1e-3, "atol": 1e-4} if of_gradients else {"rtol": 1e-4, "atol": 1e-5}


def test_served_outputs_are_those_of_the_model(export):
    """Also: batch and length are free, and in a training endpoint state and draws go on from call to call."""
    for index, outputs in enumerate(export.outputs):
        for name, value in outputs.items():
            np.testing.assert_allclose(export.served[f"{index}/{name}"], value, **tolerance(export))


def test_calls_of_a_training_endpoint_differ(exports):
    for name in ("bridge_training", "mixed_training"):
        outputs = [exports[name].served[f"{call}/{exports[name].case.outputs[0]}"] for call in range(3)]
        assert not np.allclose(outputs[0], outputs[1]) and not np.allclose(outputs[1], outputs[2])


def test_gradients_after_load_are_those_before(export):
    served = {key.removeprefix("grad/"): value for key, value in export.served.items() if key.startswith("grad/")}
    if not export.case.has_gradients[0 if ON_JAX else 1]:
        assert not export.report.has_gradients and not served
        assert "gradient_error" in export.facts and len(export.warnings) == 1
        return
    assert export.report.has_gradients and not export.warnings
    assert served.keys() == export.gradients.keys()
    for path, gradient in export.gradients.items():
        np.testing.assert_allclose(served[path], gradient, **tolerance(export, of_gradients=True), err_msg=path)


def test_names_and_shapes(export):
    assert export.facts["inputs"] == {name: list(spec) for name, spec in export.case.inputs.items()}
    assert {key.split("/")[1] for key in export.served if not key.startswith("grad/")} == set(export.case.outputs)
    assert set(export.report.outputs) == set(export.case.outputs)
    variables = {v.path: [v.trainable, keras.backend.standardize_dtype(v.dtype)] for v in export.model.variables}
    variables = {path: facts for path, facts in variables.items() if not path.startswith(("mean_", "loss", "compile_"))}
    assert export.facts["variables"] == variables
    assert export.facts["signatures"] == ["serving_default"]


def test_weights_are_stored_once(export):
    """The files hold the weights, and beside them some 80 bytes a variable and 300 in all."""
    stored = sum(file.stat().st_size for file in (export.report.path / "variables").iterdir())
    extra = stored - export.report.weights_bytes
    assert 0 < extra < 400 + 150 * len(export.model.variables)


def test_the_graph_is_small_and_holds_the_model_once(export):
    from tensorflow.core.protobuf import saved_model_pb2

    written = (export.report.path / "saved_model.pb").read_bytes()
    assert len(written) == export.report.graph_bytes < 200_000
    functions = saved_model_pb2.SavedModel.FromString(written).meta_graphs[0].graph_def.library.function
    bodies = [f for f in functions if "run_model" in f.signature.name]
    assert len(bodies) == 1
    if ON_JAX:
        modules = [node for f in functions for node in f.node_def if node.op == "XlaCallModule"]
        assert len(modules) == (2 if export.report.has_gradients and modules_differentiable(export) else 1)
        assert all(list(node.attr["platforms"].list.s) == [b"CPU"] for node in modules)


def modules_differentiable(export):
    return any(keras.backend.is_float_dtype(dtype) for _, dtype in export.facts["inputs"].values()) or bool(
        export.model.trainable_variables
    )


def test_an_inference_endpoint_writes_no_variable(exports):
    from tensorflow.core.protobuf import saved_model_pb2

    written = (exports["native"].report.path / "saved_model.pb").read_bytes()
    graph = saved_model_pb2.SavedModel.FromString(written).meta_graphs[0].graph_def
    bodies = [f for f in graph.library.function if "run_model" in f.signature.name]
    assert not [node for f in bodies for node in f.node_def if node.op == "AssignVariableOp"]


def test_no_path_of_this_machine_is_in_the_file(export):
    written = (export.report.path / "saved_model.pb").read_bytes()
    assert str(Path(__file__).parent.parent.parent).encode() not in written
