"""Variables: named by their path in the pytree, trained or not, few."""

import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

from jaxbridge import FlaxLayer, JaxLayer, ModuleLayer
from tests import harness, models
from tests.cases import BY_NAME, CASES, floats

PATHS = {
    "params": ["net/params/b", "net/params/w"],
    "state": ["net/params/w", "net/state/count", "net/state/mean"],
    "nested": [
        "net/params/0/weight",
        "net/params/0/bias",
        "net/params/0/scale",
        "net/params/1/0",
        "net/params/1/1/power",
        "net/state/calls",
        "net/state/sums/0",
        "net/state/sums/1/0",
    ],
    "mlp": [
        "net/params/Dense_0/bias",
        "net/params/Dense_0/kernel",
        "net/params/Dense_1/bias",
        "net/params/Dense_1/kernel",
    ],
    "cnn": [
        "net/params/BatchNorm_0/bias",
        "net/params/BatchNorm_0/scale",
        "net/params/Conv_0/bias",
        "net/params/Conv_0/kernel",
        "net/params/Dense_0/bias",
        "net/params/Dense_0/kernel",
        "net/batch_stats/BatchNorm_0/mean",
        "net/batch_stats/BatchNorm_0/var",
    ],
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_those_of_the_pytree(name):
    assert [v.path for v in harness.shared(BY_NAME[name]).weights] == PATHS[name]


def test_paths_below_an_outer_model_keep_the_whole_path():
    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = BY_NAME["mlp"].layer()

        def call(self, inputs):
            return self.inner(inputs)

    outer = Outer()
    outer(floats(2, 5))
    assert [v.path for v in outer.weights] == ["outer/" + path for path in PATHS["mlp"]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_params_train_and_state_does_not(case):
    layer = harness.shared(case)
    trained = [v.path for v in layer.weights if "/params/" in v.path and "float" in v.dtype]
    assert [v.path for v in layer.trainable_variables] == trained


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_seed_is_a_variable_and_no_weight(case):
    layer = harness.shared(case)
    seeds = [v.path for v in layer.variables if "seed_generator" in v.path]
    assert seeds == (["net/seed_generator/seed_generator_state"] if case.draws else [])
    assert not any("seed_generator" in v.path for v in layer.weights)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_params_and_state_are_pytrees_of_the_weights(case):
    import jax

    layer = harness.shared(case)
    leaves = jax.tree.leaves((layer.params, layer.state))
    assert [id(v) for v in leaves] == [id(v) for v in layer.weights]


def test_freezing_a_layer_leaves_nothing_to_train():
    layer = harness.built(BY_NAME["cnn"])
    count = len(layer.weights)
    layer.trainable = False
    assert layer.trainable_variables == [] and len(layer.non_trainable_weights) == count


def test_names_that_graphs_refuse_are_cleaned_and_stay_distinct():
    params = {"a~b": np.ones(2, "float32"), "a b": np.ones(2, "float32"), "_c": {"(d)": np.ones(2, "float32")}}
    layer = JaxLayer(lambda params, inputs: inputs * params["a~b"] + params["a b"], params=params, name="net")
    layer(floats(3, 2))
    paths = [v.path for v in layer.weights]
    assert len(set(paths)) == 3
    assert all(all(c.isalnum() or c in "_-/" for c in path) for path in paths)
    # A refused scope would leave Keras' stack of scopes dirty, and this path wrong.
    dense = keras.layers.Dense(1, name="after")
    dense.build((None, 2))
    assert dense.kernel.path == "after/kernel"


def test_leaves_that_are_no_arrays_stay_as_they_are():
    layer = JaxLayer(
        lambda params, inputs: inputs * params["w"] if params["mode"] == "times" else None,
        params={"w": np.full(2, 3, "float32"), "mode": "times"},
    )
    x = floats(3, 2)
    harness.assert_same(harness.numbers(layer(x)), x * 3)
    assert len(layer.weights) == 1


def test_variables_given_to_a_module_are_used():
    module = models.MLP()
    variables = module.init(jax.random.key(5), floats(1, 5))
    layer = FlaxLayer(module, variables=variables)
    harness.assert_same(harness.numbers(layer(floats(3, 5))), np.asarray(module.apply(variables, floats(3, 5))))
    assert len(layer.weights) == 4


def given_params():
    params, state = {"w": jnp.full((3, 3), 0.5)}, {"n": jnp.zeros((), jnp.int32)}
    call = lambda params, state, inputs, training: (inputs @ params["w"], {"n": state["n"] + training})
    return (params, state), lambda: JaxLayer(call, params=params, state=state)


def given_variables():
    variables = nn.Dense(3).init(jax.random.key(5), floats(1, 3))
    return variables, lambda: FlaxLayer(nn.Dense(3), variables=variables)


def given_nnx():
    module = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    return nnx.state(module), lambda: FlaxLayer(module)


def given_equinox():
    module = equinox.nn.Linear(3, 3, key=jax.random.key(0))
    return equinox.filter(module, equinox.is_array), lambda: ModuleLayer(module, vmap=True)


@pytest.mark.parametrize("given", [given_params, given_variables, given_nnx, given_equinox])
def test_given_arrays_outlive_training_and_serve_several_layers(given):
    # Keras' training step donates the buffers of variables on JAX: a shared one would be gone, or donated twice.
    arrays, layer = given()
    before, output = harness.numbers(arrays), harness.numbers(layer()(floats(1, 3)))
    harness.fit(keras.Sequential([layer(), layer()]), floats(8, 3))
    harness.assert_same(harness.numbers(arrays), before, 0, 0)
    harness.assert_same(harness.numbers(layer()(floats(1, 3))), output, 0, 0)


def test_annotations_that_are_not_applied_are_said():
    kernel_init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
    layer = FlaxLayer(nn.Dense(4, kernel_init=kernel_init), name="net")
    with pytest.warns(UserWarning, match="no mesh is known"):
        layer(np.ones((2, 3), "float32"))
    assert [v.path for v in layer.weights] == ["net/params/bias", "net/params/kernel"]
