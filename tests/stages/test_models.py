"""Whole Keras models: lowered on the JAX backend, an error that says so on TensorFlow."""

import functools

import jax
import keras
import numpy as np
import pytest

import jaxbridge
from jaxbridge.distribution import _keras_private
from jaxbridge.distribution.abstract import abstract_variables
from jaxbridge.errors import LoweringError
from jaxbridge.layers.initialization import Initialization
from tests.stages import models
from tests.stages.models import struct

#: What needs JAX to run native layers.
on_jax = pytest.mark.keras_backends("jax")


@pytest.mark.keras_backends("tensorflow")
@pytest.mark.parametrize("ask", [jaxbridge.lower, jaxbridge.summary])
@pytest.mark.parametrize(
    "given", [models.mixed, models.nested(), keras.layers.Dense(4)], ids=["function", "model", "layer"]
)
def test_on_tensorflow_the_error_says_what_to_set(ask, given):
    with pytest.raises(LoweringError, match=r"tensorflow backend runs '\w+', a \w+, without JAX.*KERAS_BACKEND=jax"):
        ask(given, struct(4, 8))


@functools.cache
def lowered(training: bool):
    return jaxbridge.lower(models.mixed, struct(4, 8), training)


@on_jax
def test_flops_of_a_mixed_model_are_those_of_the_pure_function():
    head, arguments = models.head_oracle(False)

    def pure(dense, weights, variables, x):
        x = jax.nn.relu(x @ dense["kernel"] + dense["bias"])
        return head(variables, models.call(weights, x))

    dense = {"kernel": struct(8, 4), "bias": struct(4)}
    weights = {"b": struct(16), "w": struct(4, 16)}
    wanted = jax.jit(pure).lower(dense, weights, arguments[0], struct(4, 8))
    have = lowered(False)
    assert have.cost_analysis()["flops"] == wanted.cost_analysis()["flops"]
    wanted_memory, memory = wanted.compile().memory_analysis(), have.compile().memory_analysis()
    assert memory.argument_size_in_bytes == wanted_memory.argument_size_in_bytes
    assert memory.output_size_in_bytes == wanted_memory.output_size_in_bytes
    assert memory.temp_size_in_bytes == wanted_memory.temp_size_in_bytes


@on_jax
def test_training_returns_the_state_that_changes():
    outputs, losses, state = lowered(True).out_info
    assert outputs.shape == (4, 2) and losses == []
    assert sorted(path.rpartition("/")[2] for path in state) == [
        "mean",
        "seed_generator_state",
        "seed_generator_state",
        "var",
    ]
    assert lowered(False).out_info[2] == {}


@on_jax
def test_the_variables_have_their_keras_paths():
    model = models.mixed()
    assert {v.path for v in model.weights} <= set(lowered(False).args_info[0][0])
    assert {v.path for v in model.weights} <= set(jaxbridge.lower(model, struct(4, 8)).args_info[0][0])


@on_jax
def test_a_built_model_lowers_like_the_function_that_makes_it():
    assert jaxbridge.lower(models.mixed(), struct(4, 8)).cost_analysis() == lowered(False).cost_analysis()


@on_jax
def test_unknown_sizes():
    have = jaxbridge.lower(models.mixed, keras.KerasTensor((None, 8)))
    assert str(have.args_info[0][1].shape) == "(batch, 8)" and str(have.out_info[0].shape) == "(batch, 2)"
    assert "tensor<?x8xf32>" in have.as_text() and have.cost_analysis() is None
    with pytest.raises(LoweringError, match="unknown sizes"):
        have.compile()


@on_jax
@pytest.mark.parametrize("is_made", [False, True], ids=["function", "model"])
def test_declared_inputs_are_those_of_the_model(is_made: bool):
    have = jaxbridge.lower(models.mixed() if is_made else models.mixed, batch_size=4)
    assert have.cost_analysis() == lowered(False).cost_analysis()
    assert have.args_info[0][1].shape == (4, 8)


@on_jax
def test_an_unbuilt_model_is_left_unbuilt():
    model = keras.Sequential([keras.layers.Dense(4, use_bias=False), keras.layers.Dropout(0.5)])
    have = jaxbridge.lower(model, struct(2, 8))
    assert have.cost_analysis()["flops"] == 2 * 2 * 8 * 4
    assert not model.built and model.layers[0].weights == []
    assert model(np.ones((3, 5), "float32")).shape == (3, 4)  # nothing of it was fixed


@on_jax
def test_a_model_with_two_inputs():
    def make():
        a, b = keras.Input((8,), name="a"), keras.Input((3,), name="b")
        return keras.Model([a, b], keras.layers.Concatenate()([keras.layers.Dense(2)(a), b]))

    model = make()
    for inputs in ([struct(4, 8), struct(4, 3)], (struct(4, 8), struct(4, 3))):
        assert jaxbridge.lower(model, inputs).out_info[0].shape == (4, 5)


@on_jax
def test_a_users_own_classes_and_functions():
    lowered = jaxbridge.lower(models.with_own_parts(), struct(4, 8))
    assert lowered.cost_analysis()["flops"] == 4 * 8 + 4 * 8 + 4 * 8 + 2 * 4 * 8 * 2 + 4 * 2 + 4 * 2
    assert "own/scale/factor" in lowered.args_info[0][0]


@on_jax
def test_what_a_model_raises_is_raised_here():
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 8"):
        jaxbridge.lower(models.mixed(), struct(4, 9))


@on_jax
def test_a_function_with_its_own_regularization():
    def make():
        layer = keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))
        return keras.Sequential([keras.Input((8,)), layer])

    _, losses, _ = jaxbridge.lower(make(), struct(2, 8), True).out_info
    assert [loss.shape for loss in losses] == [()]


def test_no_variable_waits_for_a_value_afterwards():
    before = _keras_private.uninitialized_variables()
    with abstract_variables():
        layer = keras.layers.Dense(4)
        layer.build((None, 8))
        assert len(_keras_private.uninitialized_variables()) == len(before) + 2
    assert _keras_private.uninitialized_variables() == before
    with pytest.raises(LoweringError, match="made without a value"):
        layer(np.ones((2, 8), "float32"))


def test_a_bridge_layer_in_a_traced_model_gets_no_values(monkeypatch):
    """Keras traces a subclassed model to build it, and reads the variables there."""

    class Around(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = jaxbridge.JaxLayer(models.call, models.init)

        def call(self, inputs):
            return self.net(inputs)

    monkeypatch.setattr(Initialization, "values", lambda *_: pytest.fail("values were made"))
    with abstract_variables():
        model = Around()
        assert model(keras.KerasTensor((None, 8))).shape == (None, 16)
    assert [variable.shape for variable in model.weights] == [(16,), (8, 16)]


@on_jax
def test_lowering_changes_no_later_model():
    keras.utils.set_random_seed(3)
    wanted = keras.layers.Dense(2)
    wanted.build((None, 4))
    keras.utils.set_random_seed(3)
    jaxbridge.lower(models.mixed, struct(4, 8))
    have = keras.layers.Dense(2)
    have.build((None, 4))
    np.testing.assert_array_equal(*(np.asarray(layer.kernel * 1) for layer in (wanted, have)))


@on_jax
def test_names_are_numbered_as_if_nothing_had_been_lowered():
    make = lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    lowered = set(jaxbridge.lower(make, struct(4, 4)).args_info[0][0])
    assert {v.path for v in make().weights} == lowered


@on_jax
def test_matmul_precision_is_in_the_program():
    with jax.default_matmul_precision("float32"):
        assert "HIGHEST" in jaxbridge.lower(models.mixed, struct(4, 8)).as_text()
    assert "HIGHEST" not in lowered(False).as_text()
