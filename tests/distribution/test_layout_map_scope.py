"""`layout_map_scope` on the kinds of models that the documentation of its predecessor describes."""

import numpy as np
import pytest

from tests.distribution.scopes import FITTED, KEYS, MODELS, WANTED

CASES = [f"{kind} {name} {when}" for kind in KEYS for name in MODELS for when in ("inside", "outside")]
CASES += [f"{kind} subclassed fit" for kind in KEYS]
TRAINED = [f"{kind} {case}" for kind in KEYS for case in FITTED]


@pytest.mark.parametrize("case", CASES)
def test_variables_are_laid_out(on_jax, case):
    assert on_jax["scopes"]["kinds"][case]["specs"] == WANTED


def test_every_case_was_run(on_jax):
    assert list(on_jax["scopes"]["kinds"]) == CASES


@pytest.mark.parametrize("case", TRAINED)
def test_slots_follow(on_jax, case):
    assert sorted(on_jax["scopes"]["kinds"][case]["slots"], key=str) == [["model"], [None, "model"]]


@pytest.mark.parametrize("case", TRAINED)
def test_losses_are_those_of_one_device(on_jax, case):
    found = on_jax["scopes"]["kinds"][case]
    losses, layouts = found["control"]
    assert layouts == ["one device"]
    np.testing.assert_allclose(found["losses"], losses, rtol=2e-5)  # sums in another order


def test_keys_are_the_names_of_objects(on_jax):
    found = on_jax["scopes"]["nested"]
    assert found["specs"] == {
        "blocks.0.inner.kernel": [None, "model"],
        "blocks/1/inner/kernel": ["model", None],
        "blocks.0.scale": ["model"],
        "blocks.1.late.kernel": ["data", "model"],
        "parts.head.kernel": ["model", None],
        "table": [None, "model"],
    }
    assert found["others"] == ["replicated"] and found["unmatched"] == [] and found["losses"]


def test_what_no_key_matches_goes_by_the_distribution(on_jax):
    found = on_jax["scopes"]["around"]
    assert found["in_a_distribution"] == {
        "d1 kernel": [None, "model"],
        "d1 bias": [],
        "d2 kernel": [None, "data"],
        "d2 bias": [],
    }
    assert found["sources"] == ["replicated", "scope", "replicated", "LayoutMap"]


def test_the_innermost_scope_counts(on_jax):
    assert on_jax["scopes"]["around"]["nested_scopes"] == [["model"], [None, "model"]]


def test_a_saved_model_can_be_loaded_in_a_scope(on_jax):
    assert on_jax["scopes"]["around"]["loaded"] == {"specs": WANTED, "equal": True}


def test_nothing_is_left_behind(on_jax):
    found = on_jax["scopes"]["around"]
    assert found["restored"] and found["afterwards"] == ["one device"]


@pytest.mark.parametrize(
    ("name", "parts"),
    {
        "overlap": ["d1/params/kernel' matches 2 keys", "'d1.*kernel', '.*/kernel'"],
        "indivisible": ["d1/params/kernel' of shape (8, 16)", "the layout_map_scope's key 'd1.params.kernel'"],
        "other_devices": ["shape=(2, 2)", "shape=(2, 4)"],
        "no_mesh": ["The LayoutMap has no mesh"],
    }.items(),
)
def test_errors(on_jax, name, parts):
    text = on_jax["scopes"]["around"][name]
    assert text.startswith("ShardingError: ")
    assert [part for part in parts if part not in text] == []
