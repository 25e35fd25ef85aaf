"""What `distribution/_keras_private.py` relies on, and what would make it unnecessary."""

import inspect

import keras
import pytest


@pytest.mark.parametrize("name", ["layout_of_a_variable", "layout_map", "keeps_slots", "moves"])
def test_private_attributes(on_jax, name):
    assert on_jax["private"][name]


def test_keras_traces_the_initializer_of_a_large_variable(on_jax):
    # If Keras no longer does, PlacedVariable can go; if ours is traced, Keras calls it by another name.
    assert on_jax["initialisation"]["large"] == {"PlacedVariable": [False], "Variable": [True]}


def test_keras_has_no_public_names_for_them():
    assert not hasattr(keras.Variable, "layout") and not hasattr(keras.distribution.ModelParallel, "layout_map")
    assert "layout" not in inspect.signature(keras.layers.Layer.add_weight).parameters
