"""Layouts by name on Keras' JAX backend, on 8 virtual CPUs: each proof beside the control that could have passed it."""

import numpy as np
import pytest

#: Sums over the batch are made in another order when it is split; two epochs of Adam.
RTOL = 2e-5

SPECS = {
    "m/first/params/w": ["data", "model"],
    "m/first/state/mean": ["model"],
    "m/net/params/up/kernel": [None, "model"],
    "m/net/params/up/bias": ["model"],
    "m/net/params/norm/scale": ["model"],
    "m/net/params/norm/bias": ["model"],
    "m/net/batch_stats/norm/mean": ["model"],
    "m/net/batch_stats/norm/var": ["model"],
    "m/net/params/down/kernel": ["model"],
    "m/net/params/down/bias": [],
}


def by_path(values):
    return {path: value for path, value in values.items() if path.startswith("m/")}


def test_params_and_state_are_laid_out_by_their_paths(on_jax):
    assert by_path(on_jax["training"]["model"]["specs"]) == SPECS


@pytest.mark.parametrize("name", ["alone", "data"])
def test_the_control_splits_nothing(on_jax, name):
    assert not any(by_path(on_jax["training"][name]["specs"]).values())


def test_slots_follow(on_jax):
    specs = on_jax["training"]["model"]["specs"]
    slots = {path.split("/")[1]: spec for path, spec in specs.items() if path.endswith(("_momentum", "_velocity"))}
    params = [path for path in SPECS if "/params/" in path]
    assert slots == {
        f"{path.replace('/', '_')}_{slot}": SPECS[path] for path in params for slot in ("momentum", "velocity")
    }


@pytest.mark.parametrize("name", ["data", "model"])
def test_losses_are_those_of_one_device(on_jax, name):
    np.testing.assert_allclose(on_jax["training"][name]["losses"], on_jax["training"]["alone"]["losses"], rtol=RTOL)


def test_bytes_per_device(on_jax):
    whole, split = on_jax["training"]["alone"], on_jax["training"]["model"]
    sizes = {"w": 256 / 8, "mean": 16 / 4, "up": (512 + 32) / 4, "norm": 4 * 32 / 4, "down": 256 / 4 + 8}
    assert (whole["bytes"], split["bytes"]) == (4 * (256 + 16 + 544 + 128 + 264), 4 * sum(sizes.values()))


@pytest.mark.parametrize("name", ["alone", "data", "model"])
def test_the_report_counts_what_the_devices_hold(on_jax, name):
    assert on_jax["training"][name]["reported_bytes"] == on_jax["training"][name]["all_bytes"]


def test_the_report_says_who_decided(on_jax):
    sources = on_jax["training"]["model"]["sources"]
    assert sources["m/net/params/up/kernel"] == ["LayoutMap", ".*/params/up/kernel"]
    assert sources["m/net/params/down/bias"] == ["replicated", None]
    slot = next(path for path in sources if path.endswith("m_net_params_up_kernel_velocity"))
    assert sources[slot] == ["slot", "m/net/params/up/kernel"]


def test_the_report_is_a_table(on_jax):
    head, rule, *rows = on_jax["training"]["model"]["text"].splitlines()
    assert head.split() == ["path", "shape", "dtype", "spec", "bytes", "per", "device", "decided", "by"]
    assert set(rule) == {"-", " "}
    row = next(row for row in rows if row.startswith("m/net/params/up/kernel"))
    assert row.split("  ")[0] == "m/net/params/up/kernel"
    assert "(16, 32)" in row and "P(None, 'model')" in row and " 512 " in row


def test_keys_that_match_nothing_and_keys_that_overlap_are_named(on_jax):
    checked = on_jax["training"]["checked"]
    assert checked["unmatched"] == ["typo/.*"]
    assert checked["overlapping"] == [["m/net/params/down/bias", [".*/down/bias", ".*/down/b.*"]]]
    assert checked["warnings"] == [
        "The LayoutMap key 'typo/.*' matches nothing.",
        "'m/net/params/down/bias' matches 2 keys: '.*/down/bias', '.*/down/b.*'.",
    ]


def test_a_product_is_split_over_the_devices(on_jax):
    model, alone = on_jax["compiled"]["model"], on_jax["compiled"]["alone"]
    # 16 x 32 over 4 devices by columns; then 32 x 8 by rows, whose partial sums are added up.
    assert model["dots"] == ["f32[16,8]"] and model["all_reduce"] and model["partitions"]
    assert "f32[16,32]" in alone["dots"] and not alone["all_reduce"] and not alone["partitions"]


def test_the_output_of_a_replicated_input_is_split(on_jax):
    model, alone = on_jax["compiled"]["model"], on_jax["compiled"]["alone"]
    assert (model["output"], model["output_shard"]) == ([None, "model"], [16, 8])
    assert (alone["output"], alone["output_shard"]) == (None, [16, 32])


@pytest.mark.parametrize(
    ("name", "held"), [("init_fn", 256), ("given", 256), ("bfloat16", 128), ("deferred", 256), ("in_shards", 256)]
)
def test_no_array_is_whole_on_a_device_when_it_is_made(on_jax, name, held):
    # Built where moving an array between devices is an error.
    spec, device_bytes, _ = on_jax["initialisation"][name]
    assert (spec, device_bytes) == (["data", "model"], held)


def test_the_guard_would_have_seen_it(on_jax):
    assert "Disallowed device-to-device transfer" in on_jax["initialisation"]["control"]


def test_sharded_initialisation_gives_the_same_values(on_jax):
    found = on_jax["initialisation"]
    np.testing.assert_allclose(found["init_fn"][2], found["alone"], rtol=1e-6)
    given = (np.arange(512.0) % 256).reshape(16, 32).tolist()
    assert [found[name][2] for name in ("given", "deferred", "bfloat16", "in_shards")] == [given] * 4


def test_given_arrays_are_copied_in_their_shards(on_jax):
    found = on_jax["initialisation"]
    assert found["kept"] == [found["given"][2]] * 2
    assert found["shared"] == [False] * 8


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "keyed": [["data"], "LayoutMap"],
        "kept_whole": [[], "LayoutMap"],
        "annotated": [[None, "model"], "annotation"],
        "product": [[["data", "model"]], "annotation"],
        "plain": [[], "replicated"],
    }.items(),
)
def test_a_key_goes_before_the_annotation(on_jax, name, expected):
    assert on_jax["annotations"][f"net/params/{name}"] == expected


def test_annotations_do_nothing_without_a_distribution(on_jax):
    assert on_jax["annotations"]["without"] == [None] * 5


def test_a_dimension_over_several_axes(on_jax):
    found = on_jax["annotations"]
    assert found["slot_of_product"] == [["data", "model"]] and found["layout_of_product"] == "NamedSharding"


def test_a_distribution_with_rules_of_its_own(on_jax):
    assert on_jax["own_rules"] == [
        ["net/params/bias", [], "replicated", None],
        ["net/params/kernel", ["model"], "distribution", "OwnRules"],
    ]


def test_weights_of_one_mesh_load_on_another(on_jax):
    # Loaded where moving an array between devices is an error.
    found = on_jax["saving"]
    assert all(found["equal"]) and not any(found["equal_before"])
    assert found["specs"] == SPECS
    assert found["shards"]["m/first/params/w"] == [4, 8]
    assert found["shards"]["m/net/params/up/kernel"] == [16, 16]


@pytest.mark.parametrize(
    ("name", "parts"),
    {
        "indivisible": [
            "'net/params/kernel' of shape (16, 6)",
            "'.*kernel'",
            "dimension 1 of size 6",
            "4",
            "data=2, model=4",
        ],
        "rank": ["'net/params/bias' of shape (6,)", "2 entries", "1 dimensions"],
        "twice": ["'net/params/kernel'", "'model' splits two"],
        "overlap": ["'net/params/kernel' matches 2 keys", "'.*kernel', 'net/.*'"],
        "other_devices": ["'net/params/kernel'", "shape=(2, 2)", "shape=(2, 4)"],
        "bad_key": ["'*kernel'", "nothing to repeat"],
    }.items(),
)
def test_errors_name_path_axis_and_sizes(on_jax, name, parts):
    text = on_jax["errors"][name]
    assert text.startswith("ShardingError: ")
    assert [part for part in parts if part not in text] == []


def test_an_exact_key_goes_before_expressions(on_jax):
    assert on_jax["errors"]["exact"] == ""


def test_the_page_is_right(on_jax):
    assert on_jax["docs"][0] == "import flax.linen as nn" and len(on_jax["docs"]) >= 6
