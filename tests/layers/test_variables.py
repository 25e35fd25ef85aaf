"""Variables: named by their path in the pytree, trained or not, few."""

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
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
    import jax

    variables = module.init(jax.random.key(5), floats(1, 5))
    layer = FlaxLayer(module, variables=variables)
    harness.assert_same(harness.numbers(layer(floats(3, 5))), np.asarray(module.apply(variables, floats(3, 5))))
    assert len(layer.weights) == 4


def test_annotations_that_are_not_applied_are_said():
    kernel_init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
    layer = FlaxLayer(nn.Dense(4, kernel_init=kernel_init), name="net")
    with pytest.warns(UserWarning, match="no mesh is known"):
        layer(np.ones((2, 3), "float32"))
    assert [v.path for v in layer.weights] == ["net/params/bias", "net/params/kernel"]
