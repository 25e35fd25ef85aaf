"""Annotations under a Keras distribution on the JAX backend: layouts, constraints, exports; beside a control without."""

import numpy as np
import pytest

KERNELS = ("m/net/params/a/kernel", "m/net/params/b/kernel")


@pytest.fixture(scope="module")
def found(on_jax):
    return on_jax["carried"]


def test_variables_are_laid_out_as_the_layer_says(found):
    assert found["shards"] == [[4, 4], [4, 8]]
    assert found["control_shards"] == [[4, 16], [16, 8]]


def test_the_function_is_split_inside(found):
    """The input is whole on every device, so nothing but the constraints can split the batch."""
    assert found["compiled"] == {"output": [4, 8], "dots": ["4,4", "4,8"], "all_reduce": True}
    assert found["control"] == {"output": [8, 8], "dots": ["8,16", "8,8"], "all_reduce": False}


def test_training_gives_the_same(found):
    """Which proves nothing alone: annotations that are lost pass it."""
    np.testing.assert_allclose(found["losses"], found["alone"], rtol=2e-5)
    np.testing.assert_allclose(found["control_losses"], found["alone"], rtol=2e-5)


def test_the_mesh_is_that_of_the_distribution(found):
    assert found["another_mesh"] == [[4, 8], [8, 8]]


def test_a_key_of_the_layout_map_goes_first(found):
    assert found["overridden"] == {"shards": [[1, 16], [4, 8]], "record": ["model", None]}


def test_a_key_mends_an_axis_that_is_missing(found):
    kept, _, refused = found["rescued"].partition(") ")
    assert kept == "P(None, 'model'"
    assert "'params/kernel' of layer 'net' has the spec P(None, 'tensor'), and 'tensor' is no axis" in refused


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("names", "a mesh with the axes 'rows', and the Keras distribution in effect one with 'data', 'model'"),
        ("sizes", "dimension 0 of size 4 is not divisible by 8"),
    ],
)
def test_mistakes_are_named(found, mistake, message):
    assert message in found[mistake]


def test_a_batch_that_cannot_be_split_is_said(found):
    inputs, outputs = found["odd_batch"]
    assert "The input of shape (3, 4)" in inputs and "multiple of 2" in inputs
    assert "The output of shape (3, 8)" in outputs


def test_exports_carry_native_layers_too(found):
    exported = found["exported"]
    bridged = dict(zip(KERNELS, ([None, "model"], ["model", None]), strict=True))
    assert exported["ours"] == {**bridged, "m/head/kernel": [None, "model"]}
    assert exported["theirs"] == bridged, "Keras' exporter knows nothing of its own layouts"
    assert exported["difference"] < 1e-4 and exported["reloaded"]
    assert exported["head"] == [8, 8]
