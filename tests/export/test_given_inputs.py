"""What a user gives to an export: inputs to compare on, and what is no model."""

import keras
import numpy as np
import pytest
from flax import linen as nn

from jaxbridge import export_saved_model, serve_without_jax
from jaxbridge.errors import ExportError, JaxBridgeError, SignatureError
from jaxbridge.export import serving
from jaxbridge.export.endpoint import make_endpoint
from jaxbridge.export.given_inputs import as_arrays, read_cases

A, IDS = np.ones((2, 3), "float32"), np.ones((2, 4), "int32")


@pytest.fixture(scope="module")
def endpoint():
    a, ids = keras.Input((3,), name="a"), keras.Input((4,), name="ids", dtype="int32")
    model = keras.Model({"a": a, "ids": ids}, keras.layers.Dense(2)(a) + keras.ops.cast(ids[:, :2], "float32"))
    return make_endpoint(model, False, None, None, ())


WRONG = {
    "a name is missing": ({"a": A}, r"must have the structure of .*'a', 'ids'.*it has 'a'"),
    "a name is wrong": ({"a": A, "id": IDS}, "it has 'a', 'id'"),
    "one array": (A, "it has one array"),
    "other rank": ({"a": A[0], "ids": IDS}, "Input 0 has rank 1"),
    "other size": (
        {"a": A[:, :2], "ids": IDS},
        r"Axis 1 of input 0 .*The inputs of the model are 'a' \(.*, 3\), 'ids'",
    ),
    "other batch": ({"a": A[:1], "ids": IDS}, "size 2"),
    "floats for integers": ({"a": A, "ids": IDS + 0.5}, "input 'ids' is float64, and the model takes int32"),
    "texts for floats": ({"a": A.astype(str), "ids": IDS}, "input 'a' is str.*takes float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_named(endpoint, name):
    given, message = WRONG[name]
    with pytest.raises(JaxBridgeError, match=rf"(?s)`verification_inputs\[1\]`.*{message}"):
        as_arrays(endpoint, 1, given)


@pytest.mark.parametrize(
    "given", [{"a": A, "ids": IDS}, {"ids": IDS, "a": A.astype("float64")}, {"a": IDS[:, :3], "ids": IDS}]
)
def test_right_inputs(endpoint, given):
    assert [array.shape for array in as_arrays(endpoint, 0, given)] == [(2, 3), (2, 4)]


@pytest.mark.parametrize("given", [[], (), iter(()), (case for case in [])])
def test_no_inputs_compare_nothing(given):
    with pytest.raises(SignatureError, match="`verification_inputs` is empty, so that nothing would be compared"):
        read_cases(given)


def test_inputs_of_a_generator_are_all_compared(tmp_path):
    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)])
    report = export_saved_model(model, tmp_path / "served", verification_inputs=(np.ones((n, 3)) for n in (1, 4)))
    assert report.verification.input_shapes == (((1, 3),), ((4, 3),))


def double(x):
    return x * 2


NO_MODELS = {
    "function": (double, r"jaxbridge\.JaxLayer\(the_function\)"),
    "module": (nn.Dense(2), r"jaxbridge\.FlaxLayer\(the_module\)"),
    "layer": (keras.layers.Dense(2), r"the_layer\]\)`"),
    "path": ("model.keras", r"got 'model\.keras'"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_model(tmp_path, name):
    given, message = NO_MODELS[name]
    with pytest.raises(SignatureError, match=rf"(?s)`model` must be a Keras model; .*{message}"):
        export_saved_model(given, tmp_path / "served")
    assert list(tmp_path.iterdir()) == []


INPUTS = [
    (3, "`inputs` must be `keras.KerasTensor`s or arrays"),
    ([None], "`inputs` must be `keras.KerasTensor`s or arrays .*got None"),
    ([A, A], "`inputs` has 2 tensors, and model 'm' has 1 inputs"),
]


@pytest.mark.parametrize(("given", "message"), INPUTS)
def test_wrong_inputs_of_the_endpoint(tmp_path, given, message):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="m")
    with pytest.raises(SignatureError, match=message):
        export_saved_model(model, tmp_path / "served", inputs=given)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)])
    export_saved_model(model, folder, verify=False)
    return folder


SERVING = {
    "another shape": ({"x": A[:, :2]}, {}, r"Input 'x' has the shape \(None, 3\) and was given \(2, 2\)"),
    "another signature": (
        {"x": A},
        {"signature": "train"},
        r"It has no signature 'train'; it has \['serving_default'\]",
    ),
}


@pytest.mark.parametrize("name", SERVING)
def test_what_is_served_wrongly_is_said_alone(served, name):
    """Without a traceback, and without what TensorFlow logs before it."""
    inputs, options, message = SERVING[name]
    with pytest.raises(ExportError, match=rf"model cannot be served as asked: {message}\.$") as caught:
        serve_without_jax(served, [inputs], **options)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path):
    for path in (tmp_path, tmp_path / "no"):
        with pytest.raises(ExportError, match=r"is no SavedModel: it has no file saved_model\.pb"):
            serve_without_jax(path, [{"x": A}])


@pytest.mark.parametrize("inputs", [{"x": A}, [A], 3, A])
def test_what_is_no_list_of_calls(served, inputs):
    with pytest.raises(SignatureError, match="`inputs` must be a sequence of mappings"):
        serve_without_jax(served, inputs)


ENDS = {
    "SIGKILL": "out of memory",
    "SIGSEGV": "a crash inside TensorFlow",
    "SIGTERM": r"ended by SIGTERM\.",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_is_killed_is_said_with_its_signal(served, tmp_path, monkeypatch, name):
    script = tmp_path / "script.py"
    script.write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})")
    monkeypatch.setattr(serving, "_SCRIPT", script)
    with pytest.raises(ExportError, match=rf"{name}.*{ENDS[name]}|{ENDS[name]}"):
        serve_without_jax(served, [{"x": A}])
