"""What an export refuses, and that a failed one leaves nothing."""

import jax
import keras
import numpy as np
import pytest

from jaxbridge import JaxLayer, export_saved_model, serve_without_jax
from jaxbridge.core import prng
from jaxbridge.errors import ExportError, JaxBridgeError, ShapeError, SignatureError
from jaxbridge.export import folders, saved_model
from tests.export.models import several

ON_JAX = keras.config.backend() == "jax"


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)], name="m")


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_difference_is_caught_and_nothing_is_left(model, tmp_path, monkeypatch):
    traced = saved_model._trace

    def planted(*args):
        model.layers[-1].bias.assign([0.1, 0.0])  # after the copy was made
        module, named = traced(*args)
        model.layers[-1].bias.assign([0.2, 0.0])
        return module, named

    monkeypatch.setattr(saved_model, "_trace", planted)
    with pytest.raises(ExportError, match=r"output 'output_0' differs by up to 0\.1.*`verify=False`"):
        export_saved_model(model, tmp_path / "new" / "deeper" / "served")
    assert left(tmp_path) == []


def test_a_save_that_fails_keeps_the_old_export(model, tmp_path, monkeypatch):
    export_saved_model(model, tmp_path / "served", verify=False)
    before = (tmp_path / "served" / "saved_model.pb").read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(saved_model, "_save", fail)
    with pytest.raises(ExportError, match=r"disk full.*MB are free there.*Nothing was left behind"):
        export_saved_model(model, tmp_path / "served", verify=False)
    assert left(tmp_path) == ["served"]
    assert (tmp_path / "served" / "saved_model.pb").read_bytes() == before


def test_a_failing_rename_brings_the_old_export_back(tmp_path, monkeypatch):
    for name in ("written", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "target" / "saved_model.pb").write_text("old")
    rename = folders.os.rename

    def fail_once(source, target):
        if source == tmp_path / "written":
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(folders.os, "rename", fail_once)
    with pytest.raises(OSError, match="no"):
        folders.put(tmp_path / "written", tmp_path / "target", tmp_path / "replaced")
    assert (tmp_path / "target" / "saved_model.pb").read_text() == "old"


def test_an_export_is_replaced_also_behind_a_link(model, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export_saved_model(model, tmp_path / "link", verify=False)
    model.layers[-1].bias.assign([1.0, 2.0])
    report = export_saved_model(model, tmp_path / "link", verify=True)
    assert (tmp_path / "link").is_symlink() and left(tmp_path) == ["link", "real"]
    assert len(report.verification.input_shapes) == 2 and report.verification.max_difference < 1e-5


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_saved_model_is_not_replaced(model, tmp_path, kind):
    target = tmp_path / "precious"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    with pytest.raises(ExportError, match="exists and is no SavedModel"):
        export_saved_model(model, target)
    assert left(tmp_path) == ["precious"]


@pytest.mark.parametrize("platforms", ["cpu", ("gpu",), ()])
def test_platforms_are_checked(model, tmp_path, platforms):
    with pytest.raises(SignatureError, match="`platforms` must be a sequence out of"):
        export_saved_model(model, tmp_path / "served", platforms=platforms)
    assert left(tmp_path) == []


MISTAKES = [
    ({"platforms": ("cpu", "cpu")}, "`platforms` must be .* each platform once"),
    ({"target": 18}, "`target` must be a text such as 'tensorflow==2.18' .*; got 18"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes(model, tmp_path, options, message):
    with pytest.raises(JaxBridgeError, match=message):
        export_saved_model(model, tmp_path / "served", verify=False, **options)
    assert left(tmp_path) == []


def test_a_file_as_a_parent(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ExportError, match=r"Nothing can be written in .*file.*Choose a `path`"):
        export_saved_model(model, tmp_path / "file" / "deeper" / "served", verify=False)
    assert left(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written(model, tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")  # the superuser, as whom tests may run, may write everywhere

    monkeypatch.setattr(folders.tempfile, "mkdtemp", refuse)
    with pytest.raises(ExportError, match=r"PermissionError: .* Choose a `path`"):
        export_saved_model(model, tmp_path / "new" / "served", verify=False)
    assert left(tmp_path) == []


def test_several_arguments_of_a_call(tmp_path):
    class Two(keras.Model):
        def __init__(self):
            super().__init__(name="two")
            self.dense = keras.layers.Dense(3)

        def call(self, a, b, training=None):
            return self.dense(a) + b

    model = Two()
    values = np.ones((5, 4), "float32"), np.ones((5, 3), "float32")
    model(*values)
    with pytest.raises(ExportError, match=r"'two' is called with the arguments a, b; .*`keras.Model\(\[a, b\], model"):
        export_saved_model(model, tmp_path / "served")
    assert left(tmp_path) == []
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")  # what the message says
    report = export_saved_model(keras.Model([a, b], model(a, b)), tmp_path / "served", verify=False)
    assert list(report.inputs) == ["a", "b"]


def test_an_unbuilt_model(tmp_path):
    with pytest.raises(ExportError, match="is not built: call it once"):
        export_saved_model(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "served")


def test_a_model_that_cannot_be_traced_for_unknown_sizes(tmp_path):
    def call(inputs):
        return inputs * 2 if inputs.shape[1] > 5 else inputs

    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, JaxLayer(call, compute_output_shape_fn=lambda shape: shape)(x))
    with pytest.raises(ShapeError, match=r"(?s)are unknown.*polymorphic_constraints="):
        export_saved_model(model, tmp_path / "served")
    assert left(tmp_path) == []
    report = export_saved_model(model, tmp_path / "served", inputs=keras.KerasTensor((2, 7, 4)), verify=False)
    assert report.inputs == {"inputs": ((2, 7, 4), "float32")}


def test_inputs_of_a_first_call_promise_no_batch_size(tmp_path):
    model = keras.Sequential([keras.layers.Dense(2)])
    model(np.ones((2, 3), "float32"))
    assert export_saved_model(model, tmp_path / "a", verify=False).inputs == {"inputs": ((None, 3), "float32")}
    report = export_saved_model(model, tmp_path / "a", inputs=np.ones((5, 3), "float32"), verify=False)
    assert report.inputs == {"inputs": ((None, 3), "float32")}


def test_inputs_of_a_first_call_in_a_list_are_numbered(tmp_path):
    model = several([np.ones((2, 4), "float32"), np.ones((2, 3), "float32")])
    report = export_saved_model(model, tmp_path / "a", verify=False)
    assert report.inputs == {"inputs_0": ((None, 4), "float32"), "inputs_1": ((None, 3), "float32")}


def test_string_inputs(tmp_path):
    words = keras.Input((None,), dtype="string", name="words")
    ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    model = keras.Model(words, {"y": keras.layers.Embedding(3, 4)(ids), "ids": ids})
    if ON_JAX:
        with pytest.raises(JaxBridgeError, match="string"):
            export_saved_model(model, tmp_path / "served")
        assert left(tmp_path) == []
        return
    report = export_saved_model(model, tmp_path / "served", verification_inputs=[np.array([["b", "z"]])])
    assert report.inputs == {"words": ((None, None), "string")}
    served = serve_without_jax(tmp_path / "served", [{"words": np.array([["b", "z", "a"]], object)}])[0]
    np.testing.assert_array_equal(served["ids"], [[2, 0, 1]])


def test_text_and_string_outputs(tmp_path):
    split = keras.layers.TextVectorization(vocabulary=["x", "y"])
    back = keras.layers.StringLookup(vocabulary=["x", "y"], invert=True)
    text = keras.Input((), dtype="string", name="text")
    model = keras.Model(text, back(split(text) - 1))
    if ON_JAX:
        with pytest.raises(JaxBridgeError, match="string"):
            export_saved_model(model, tmp_path / "served")
        return
    export_saved_model(model, tmp_path / "served", verify=False)
    served = serve_without_jax(tmp_path / "served", [{"text": np.array(["y x y"])}])[0]
    assert next(iter(served.values())).tolist() == [[b"y", b"x", b"y"]]


def test_a_served_training_endpoint_draws_by_the_rule(tmp_path):
    """Call n after the export has the key `fold_in(key(seed), drawn before + n)`."""
    x = keras.Input((1,), name="x")
    keys = JaxLayer(lambda rng, inputs: inputs[:, :1].astype("uint32") * 0 + rng, seed=7)
    model = keras.Model(x, {"key": keys(x, training=True)})
    model(np.zeros((1, 1), "float32"), training=True)
    export_saved_model(model, tmp_path / "served", training=True, verify=False)
    served = serve_without_jax(tmp_path / "served", [{"x": np.zeros((1, 1), "float32")}] * 3)
    for number, outputs in enumerate(served, start=1):
        key = prng.key_from_seed(np.array([7, number], "uint32"))
        np.testing.assert_array_equal(outputs["key"][0], jax.random.key_data(key))


def test_platforms_are_in_the_file(tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    x = keras.Input((3,), name="x")
    model = keras.Model(x, JaxLayer(lambda inputs: inputs * 2)(x))
    report = export_saved_model(model, tmp_path / "served", platforms=("cpu", "cuda", "tpu"))
    graph = saved_model_pb2.SavedModel.FromString((tmp_path / "served" / "saved_model.pb").read_bytes()).meta_graphs[0]
    nodes = [n for f in graph.graph_def.library.function for n in f.node_def if n.op == "XlaCallModule"]
    assert nodes and all(list(n.attr["platforms"].list.s) == [b"CPU", b"CUDA", b"TPU"] for n in nodes)
    assert report.platforms == ("cpu", "cuda", "tpu") and report.verification is not None


@pytest.mark.parametrize(("policy", "rounding"), [("mixed_bfloat16", 2.0**-8), ("mixed_float16", 2.0**-11)])
def test_mixed_precision_is_compared_within_its_own_rounding(tmp_path, policy, rounding):
    """Called op by op, the model differs by 1e-3 in bfloat16 from what JAX compiles and TensorFlow serves."""

    def call(params, inputs):
        for w in params:
            inputs = jax.nn.gelu(jax.nn.standardize(inputs @ w))
        return inputs

    x = keras.Input((64,), name="x")
    weights = [w / 8 for w in np.random.default_rng(0).normal(size=(4, 64, 64)).astype("float32")]
    model = keras.Model(x, keras.layers.Dense(1, dtype="float32")(JaxLayer(call, params=weights, dtype=policy)(x)))
    verification = export_saved_model(model, tmp_path / "served").verification
    # Compilers of two versions fuse otherwise: seen 2e-7 (one version) to 1.3e-2 (two) in bfloat16, 1.3e-3 in float16.
    assert verification.max_difference < 10 * rounding


def test_wrong_names_for_serving(model, tmp_path):
    export_saved_model(model, tmp_path / "served", verify=False)
    with pytest.raises(ExportError, match=r"has the inputs \['x'\] and was given \['y'\]"):
        serve_without_jax(tmp_path / "served", [{"y": np.ones((1, 3))}])


def test_not_a_number_must_be_at_the_same_places(tmp_path, monkeypatch):
    x = keras.Input((3,), name="x")
    export_saved_model(keras.Model(x, keras.ops.log(x)), tmp_path / "served")  # NaN where x < 0
    monkeypatch.setattr("jaxbridge.export.verify.serve_without_jax", lambda *_, **__: [{"y": np.zeros((2, 3))}] * 2)
    with pytest.raises(ExportError, match="does not give what the model gives"):
        export_saved_model(keras.Model(x, {"y": keras.ops.log(x)}), tmp_path / "served")
