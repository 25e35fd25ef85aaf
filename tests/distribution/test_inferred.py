"""Shardings that nobody wrote down: of inputs, and those that the compiler chose."""

import pytest

SPLIT = [["data", "model"], True, []]


@pytest.mark.parametrize("name", ["device_put", "jit", "process_local", "product", "other_names", "pmap"])
def test_inputs_are_taken_as_they_are(on_jax, name):
    assert on_jax["inferred"][name] == SPLIT


def test_what_is_on_no_device_is_put_where_it_is_needed(on_jax):
    assert on_jax["inferred"]["numpy"] == [[None, "model"], True, []]


@pytest.mark.parametrize(
    ("name", "spec", "there"),
    [
        ("one_device", [None, "model"], "spec=P()"),
        ("half", ["data", "model"], "spec=P('data',)"),
        ("half_other_names", [None, "model"], "spec=P()"),
    ],
)
def test_inputs_on_other_devices_are_moved_and_it_is_said(on_jax, name, spec, there):
    found, right, warnings = on_jax["inferred"][name]
    assert (found, right) == (spec, True)
    assert len(warnings) == 1
    assert (
        warnings[0].startswith("Input 0 of layer 'net' is on other devices") and there in warnings[0].split(" to ")[1]
    )


def test_the_compiler_propagates(on_jax):
    inputs, variables = on_jax["inferred"]["propagated"]
    assert inputs == [None, "model"]
    assert variables == {"rows/params/bias": [None], "rows/params/kernel": ["model", None]}


def test_the_compiler_keeps_what_was_said(on_jax):
    assert on_jax["inferred"]["kept"] == ["data"]


def test_without_layouts_there_is_nothing_to_propagate(on_jax):
    assert on_jax["inferred"]["alone"] == ["SingleDeviceSharding"]
