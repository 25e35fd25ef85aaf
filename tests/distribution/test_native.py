"""Keras' meshes and layouts as the backend's own, and back."""

import pytest

DEVICES = [f"cpu:{n}" for n in range(8)]


def test_mesh_and_layout_on_jax(on_jax):
    found = on_jax["native"]
    assert (found["kind"], found["auto"]) == ("Mesh", ["AxisType.Auto"] * 2)
    assert found["layout"] == ["NamedSharding", [None, "model"]]


def test_mesh_and_layout_on_tensorflow(on_tensorflow):
    found = on_tensorflow["native"]
    assert (found["kind"], found["sizes"]) == ("Mesh", {"data": 2, "model": 4})
    assert found["layout"] == ["Layout", ["unsharded", "model"]]


def test_the_layout_splits_a_dtensor(on_tensorflow):
    assert on_tensorflow["native"]["shards"] == [[16, 8]]


def test_equal_ones_are_the_same_object(on_jax, on_tensorflow):
    assert on_jax["native"]["cached"] and on_tensorflow["native"]["cached"]


def test_back_to_keras(on_jax, on_tensorflow):
    assert on_jax["native"]["back"] == [["b", None], [4, 2], ["a", "b"], DEVICES]
    assert on_jax["native"]["mesh_back"] == [[2, 4], True]
    assert on_tensorflow["native"]["back"] == [["data", None], [2, 4], ["data", "model"]]
    assert on_tensorflow["native"]["devices_back"]


def test_layout_of_a_variable(on_jax):
    assert on_jax["native"]["layout_of"] == [None, "model"]


@pytest.mark.parametrize(
    ("backend", "name", "parts"),
    [
        ("on_jax", "few", ["ShardingError", "16 devices", "cpu:8", "cpu:7"]),
        ("on_jax", "product", ["ShardingError", "P(('data', 'model'))", "TensorLayout cannot say"]),
        ("on_jax", "no_mesh", ["ValueError", "has no mesh"]),
        ("on_jax", "unnamed", ["ShardingError", "SingleDeviceSharding", "no named mesh"]),
        (
            "on_tensorflow",
            "few",
            ["ShardingError", "16 devices", "TensorFlow has 8", "CPU:8", "set_logical_device_config"],
        ),
        ("on_tensorflow", "product", ["ShardingError", "('data', 'model')"]),
        ("on_tensorflow", "no_layout", ["ShardingError", "'nothing'"]),
    ],
)
def test_errors(request, backend, name, parts):
    text = request.getfixturevalue(backend)["native"][name]
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("layer", ["native", "ours"])
def test_a_ragged_batch_is_an_error_of_jax(on_jax, layer):
    """Fails once Keras pads it, or leaves it whole: then `docs/sharding.md` is wrong."""
    assert on_jax["ragged"][layer].startswith("IndivisibleError") and "partitioned 8 times" in on_jax["ragged"][layer]


def test_a_distribution_on_tensorflow_warns_once(on_tensorflow):
    # For one that is in effect while two layers are built, and for one scope.
    first, second = on_tensorflow["without_effect"]["warnings"]
    assert first.startswith(
        "keras.distribution.ModelParallel is in effect, and Keras does not distribute on this backend"
    )
    assert second.startswith("layout_map_scope is in effect")


def test_layouts_on_tensorflow_change_nothing(on_tensorflow):
    found = on_tensorflow["without_effect"]
    assert found["layouts"] == [None] * 4 and found["fell"]
    assert found["bytes"] == 4 * (16 * 8 + 8 + 8 * 8 + 8)


def test_tensorflow_chooses_no_shardings(on_tensorflow):
    assert on_tensorflow["without_effect"]["compiled"].startswith("UnsupportedBackendError")
