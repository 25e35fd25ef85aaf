"""Exports for an older TensorFlow and for other platforms."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import FlaxLayer, JaxLayer, export_saved_model
from jaxbridge.errors import ConversionError, ExportError
from jaxbridge.jax2tf.targets import installed, resolve
from tests.cases import BY_NAME
from tests.jax2tf.test_module import version_of

ON_JAX = keras.config.backend() == "jax"


class Head(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.gelu(nn.BatchNorm(use_running_average=not training)(nn.Dense(8)(x)), approximate=False)
        return jax.lax.top_k(x, 3)[0]


def head_model() -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), FlaxLayer(Head(), name="head")], name="m")


def model_of(call, **options) -> keras.Model:
    x = keras.Input((3,), name="x")
    return keras.Model(x, JaxLayer(call, name="net", **options)(x), name="m")


def ops(directory):
    from tensorflow.core.protobuf import saved_model_pb2

    graph = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    return [node for f in graph.library.function for node in f.node_def if node.op == "XlaCallModule"]


@pytest.mark.parametrize("target", ["tensorflow==2.18", None])
def test_every_module_is_written_for_the_target(tmp_path, target):
    """The forward pass and its gradient, on either backend."""
    report = export_saved_model(head_model(), tmp_path / "served", target=target)
    wanted = resolve(target)
    assert report.target == wanted and report.target.name == (target or installed().name)
    assert report.verification is not None and report.verification.tensorflow == tf.__version__
    found = ops(tmp_path / "served")
    assert len(found) >= 2
    for op in found:
        assert (version_of(op.attr["module"].s), op.attr["version"].i) == (wanted.stablehlo, wanted.calling_convention)
    described = json.loads((tmp_path / "served" / "assets.extra" / "jaxbridge.json").read_text())
    assert described["target"]["name"] == wanted.name and described["target"]["stablehlo"] == wanted.stablehlo
    assert described["platforms"] == ["cpu"] and described["written_with"]["jax"] == jax.__version__


def test_a_target_leaves_later_conversions_alone(tmp_path):
    model = head_model()
    for target in ("tensorflow==2.18", None):
        export_saved_model(model, tmp_path / "served", target=target, verify=False)
        assert {version_of(op.attr["module"].s) for op in ops(tmp_path / "served")} == {resolve(target).stablehlo}


@pytest.mark.parametrize("target", ["tensorflow==2.18", "1.7.3"])
def test_an_op_that_the_target_lacks_leaves_no_files(tmp_path, target):
    model = model_of(lambda inputs: inputs.astype(jnp.float4_e2m1fn).astype(jnp.float32))
    with pytest.raises(
        ConversionError, match=r"`stablehlo.convert` \(.*test_targets.py:\d+\) .* needs StableHLO 1\.8\.0"
    ):
        export_saved_model(model, tmp_path / "served", target=target)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_leaves_no_files(tmp_path):
    with pytest.raises(ConversionError, match=r"What TensorFlow 1\.15 reads was not measured"):
        export_saved_model(head_model(), tmp_path / "served", target="tensorflow==1.15")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_cannot_run_here_is_not_verified_here(tmp_path):
    with pytest.raises(ExportError, match=r"Write `platforms=\('cpu', 'cuda'\)`, or pass `verify=False`"):
        export_saved_model(head_model(), tmp_path / "served", platforms=("cuda",))
    assert list(tmp_path.iterdir()) == []
    report = export_saved_model(head_model(), tmp_path / "served", platforms=("cuda",), verify=False)
    assert report.platforms == ("cuda",)
    assert all(list(op.attr["platforms"].list.s) == [b"CUDA"] for op in ops(tmp_path / "served"))


@pytest.mark.parametrize("platforms", [["cpu", "cuda", "tpu", "rocm"], None])
def test_platforms_of_a_layer_survive_saving(tmp_path, platforms):
    """They are what Keras' own exporter lowers it for on the TensorFlow backend."""
    case = BY_NAME["params"]
    model = case.functional(case.layer(native_serialization_platforms=platforms))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("net").get_config()["native_serialization_platforms"] == platforms
    x = case.model_input(2)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)
    if ON_JAX:
        return
    loaded.export(tmp_path / "served", verbose=False)
    wanted = [platform.upper().encode() for platform in platforms or ["cpu"]]
    assert all(list(op.attr["platforms"].list.s) == wanted for op in ops(tmp_path / "served"))
