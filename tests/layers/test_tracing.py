"""How often Python runs the user's function, and building while something else is being traced."""

import jax
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from tests import harness, models
from tests.cases import BY_NAME, floats, ids


class Runs:
    """The training flag of each run. An object of the user's: layers whose functions hold one share no traces."""

    def __init__(self):
        self.flags = []


def counted(call, init=None):
    """Returns a layer of `call` and the list to which each run of it adds its training flag."""
    runs = Runs()

    def traced(params, inputs, training):
        runs.flags.append(training)
        return call(params, inputs)

    return JaxLayer(traced, init or models.dense_init), runs.flags


@pytest.mark.parametrize("training", [False, True])
def test_equal_calls_trace_once(training):
    layer, runs = counted(models.dense_call)
    layer(floats(3, 5), training=training)
    count = len(runs)
    for _ in range(3):
        layer(floats(3, 5), training=training)
    assert len(runs) == count
    assert 1 <= count <= 2


def test_eager_batches_of_every_size_trace_once_per_mode():
    """JAX compiles anew for each shape; a converted function is one for all of them."""
    layer, runs = counted(models.dense_call)
    for training in (False, True):
        for batch in range(1, 9):
            layer(floats(batch, 5), training=training)
    at_most = 8 if harness.BACKEND == "jax" else 1
    assert 1 <= runs.count(False) <= at_most
    assert 1 <= runs.count(True) <= at_most


def test_predict_and_fit_trace_a_bounded_number_of_times():
    layer, runs = counted(models.dense_call)
    model = keras.Sequential([keras.Input((5,)), layer])
    harness.fit(model, floats(8, 5), epochs=1)
    count = len(runs)
    model.fit(floats(8, 5), np.zeros((8, 4)), epochs=3, batch_size=4, verbose=0)
    assert len(runs) == count


class Unbuilt(keras.Model):
    """Has a layer that only its first call builds."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        return self.layer(inputs, training=training)


def assert_concrete(layer):
    for variable in layer.variables:
        assert not isinstance(variable.value, jax.core.Tracer), variable.path
    harness.numbers(layer.variables)


LAYERS = ["params", "rng_and_state", "mlp", "cnn", "haiku"]


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"jit_compile": True}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_fit_builds(name, options):
    case = BY_NAME[name]
    model = Unbuilt(case.layer())
    outputs = 4 if name in ("params", "rng_and_state") else 3 if name == "cnn" else 2
    model.compile("sgd", "mse", **options)
    model.fit(case.model_input(8), np.zeros((8, outputs)), batch_size=4, verbose=0)
    assert_concrete(model.layer)
    harness.assert_same(harness.numbers(model.layer(*case.args(2, 8))), harness.numbers(model(case.model_input(2))))


@pytest.mark.parametrize("name", LAYERS)
def test_predict_builds_with_the_values_of_an_eager_build(name):
    case = BY_NAME[name]
    model = Unbuilt(case.layer())
    got = model.predict(case.model_input(4), verbose=0)
    assert_concrete(model.layer)
    harness.assert_same(got, harness.numbers(harness.built(case)(*case.args(4, 8))))


@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_function_of_the_user_builds(name):
    case = BY_NAME[name]
    layer = case.layer()
    if harness.BACKEND == "jax":
        got = jax.jit(lambda args: layer(*args))(case.args(4, 8))
    else:
        import tensorflow as tf

        got = tf.function(lambda args: layer(*args))(harness.tensors(case.args(4, 8)))
    assert_concrete(layer)
    harness.assert_same(harness.numbers(got), harness.numbers(harness.built(case)(*case.args(4, 8))))


@pytest.mark.parametrize("name", ["rng_and_state", "cnn"])
def test_a_training_trace_leaves_no_tracer_behind(name):
    case = BY_NAME[name]
    layer = harness.built(case)
    harness.compiled(layer, True)(*harness.tensors(case.args(4, 8)))
    assert_concrete(layer)


def test_init_sees_the_real_dtypes():
    seen = []

    def init(rng, inputs):
        seen.append((inputs["ids"].dtype, inputs["x"].dtype))
        return {"w": np.ones(3, "float32")}

    layer = JaxLayer(lambda params, inputs: inputs["x"] * params["w"], init)
    layer({"ids": ids(2, 3, below=5), "x": floats(2, 3)})
    assert set(seen) == {(np.dtype("int32"), np.dtype("float32"))}


def test_integer_ids_build_an_embedding():
    layer = FlaxLayer(models.nn.Embed(13, 4))
    x = keras.Input((None,), dtype="int32")
    model = keras.Model(x, layer(x))
    table = harness.numbers(layer.params)["params"]["embedding"]
    harness.assert_same(model.predict(ids(2, 6, below=13), verbose=0), table[ids(2, 6, below=13)])


def test_init_is_not_run_where_params_are_given():
    def init(rng, inputs):
        raise AssertionError("called")

    layer = JaxLayer(models.dense_call, init, params={"w": np.ones((5, 4), "float32"), "b": np.zeros(4, "float32")})
    layer(floats(2, 5))


class Around(keras.Model):
    """A user's model, which Keras traces to find its output's shape."""

    def __init__(self):
        super().__init__()
        self.net = JaxLayer(models.dense_call, models.dense_init)

    def call(self, inputs):
        return self.net(inputs)


@pytest.mark.parametrize("shape", [(5,), (None, 5)], ids=str)
def test_a_model_around_it_is_called_on_unknown_sizes(shape):
    """Sizes are symbols there, of a trace that is over when the values are made."""
    inputs = keras.Input(shape)
    outputs = Around()(inputs)
    model = keras.Model(inputs, outputs)
    for batch in (3, 6):
        x = floats(batch, *(4 if size is None else size for size in shape))
        assert model(x).shape == (*x.shape[:-1], outputs.shape[-1])
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(x, np.zeros(model(x).shape), verbose=0).history["loss"]).all()
