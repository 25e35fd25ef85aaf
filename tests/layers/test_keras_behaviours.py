"""What the tests of Keras' own JaxLayer and FlaxLayer ask of them, as behaviours."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import FlaxLayer, JaxLayer, jax2tf
from tests import harness

X = np.random.default_rng(0).normal(size=(16, 6, 6, 1)).astype("float32")
Y = np.eye(3, dtype="float32")[np.arange(16) % 3]
ONE = np.ones((1,), "float32")


@keras.saving.register_keras_serializable(package="keras_behaviours")
def mlp_init(rng, inputs):
    sizes = [36, 5, 3]
    return [
        [jax.random.normal(key, (m, n)) / m, jnp.full((n,), 0.1)]
        for key, m, n in zip(jax.random.split(rng, 2), sizes, sizes[1:], strict=False)
    ]


@keras.saving.register_keras_serializable(package="keras_behaviours")
def mlp_call(params, inputs):
    x = inputs.reshape((inputs.shape[0], -1))
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return jax.nn.softmax(x @ w + b)


@keras.saving.register_keras_serializable(package="keras_behaviours")
def counting_init(rng, inputs, training):
    return mlp_init(rng, inputs), jnp.zeros([], jnp.int32)


@keras.saving.register_keras_serializable(package="keras_behaviours")
def counting_call(params, state, inputs, training):
    return mlp_call(params, inputs), state + 1 if training else state


class _Module(nn.Module):
    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls()


@keras.saving.register_keras_serializable(package="keras_behaviours")
class Plain(_Module):
    @nn.compact
    def forward(self, inputs):
        x = nn.avg_pool(nn.relu(nn.Conv(2, (3, 3))(inputs)), (2, 2), (2, 2))
        return nn.softmax(nn.Dense(3)(x.reshape((x.shape[0], -1))))


@keras.saving.register_keras_serializable(package="keras_behaviours")
class WithDropout(_Module):
    @nn.compact
    def my_apply(self, inputs, training):
        x = nn.Dropout(0.3, deterministic=not training)(nn.Dense(5)(inputs.reshape((inputs.shape[0], -1))))
        return nn.softmax(nn.Dense(3)(nn.relu(x)))


@keras.saving.register_keras_serializable(package="keras_behaviours")
def dropout_wrapper(module, x, training):
    return module.my_apply(x, training)


@keras.saving.register_keras_serializable(package="keras_behaviours")
class WithStatistics(_Module):
    @nn.compact
    def __call__(self, inputs, training=False):
        x = nn.Conv(2, (3, 3), use_bias=False)(inputs)
        x = nn.relu(nn.BatchNorm(use_running_average=not training, use_scale=False)(x)).reshape((x.shape[0], -1))
        return nn.softmax(nn.Dense(3)(nn.Dropout(0.3, deterministic=not training)(x)))


def of_functions(call, init):
    return lambda params=None, state=None, **kwargs: JaxLayer(call, init, params, state, **kwargs)


def of_module(module, method=None):
    def make(params=None, state=None, **kwargs):
        variables = {**(params or {}), **(state or {})} or None
        return FlaxLayer(module, method, variables, **kwargs)

    return make


#: name -> (makes the layer, trainable weights, their elements, other weights, their elements)
MODELS = {
    "functions": (of_functions(mlp_call, mlp_init), 4, 36 * 5 + 5 + 5 * 3 + 3, 0, 0),
    "functions with state": (of_functions(counting_call, counting_init), 4, 203, 1, 1),
    "bound method": (of_module(Plain(), Plain().forward), 4, 18 + 2 + 18 * 3 + 3, 0, 0),
    "unbound method, draws": (of_module(WithDropout(), dropout_wrapper), 4, 203, 0, 0),
    "state and draws": (of_module(WithStatistics()), 4, 18 + 2 + 72 * 3 + 3, 2, 4),
}
#: name -> (model, policy)
ALL = {
    **{name: (name, "float32") for name in MODELS},
    "functions with state, mixed_float16": ("functions with state", "mixed_float16"),
}
#: Those whose Keras export is compared; the other models are exported by `tests/export`.
EXPORTED = ("state and draws", "functions with state, mixed_float16")


@pytest.fixture(scope="module", params=ALL)
def trained(request):
    """A fitted functional model, its layer, and its weights before the fit."""
    name, policy = ALL[request.param]
    make, *counts = MODELS[name]
    options = {} if policy == "float32" else {"dtype": keras.DTypePolicy(policy)}
    layer = make(**options)
    inputs = keras.Input((6, 6, 1))
    model = keras.Model(inputs, layer(inputs))
    model.compile("adam", "categorical_crossentropy", metrics=[keras.metrics.CategoricalAccuracy()])
    before = layer.get_weights()
    model.fit(X, Y, batch_size=4, verbose=0)
    return lambda **kwargs: make(**options, **kwargs), counts, layer, model, before


def counts_of(layer):
    sizes = [sum(int(np.prod(w.shape)) for w in ws) for ws in (layer.trainable_weights, layer.non_trainable_weights)]
    return [len(layer.trainable_weights), sizes[0], len(layer.non_trainable_weights), sizes[1]]


def test_weights_are_counted(trained):
    assert counts_of(trained[2]) == trained[1]


def test_fit_changes_every_weight(trained):
    _, _, layer, _, before = trained
    assert all(not np.array_equal(a, b) for a, b in zip(before, layer.get_weights(), strict=True))


def test_inference_changes_none(trained):
    _, _, layer, model, _ = trained
    before = layer.get_weights()
    assert model(X).shape == (16, 3) and model.predict(X, verbose=0).shape == (16, 3)
    assert all(map(np.array_equal, before, layer.get_weights()))


def sequential_of(trained):
    """The same layer anew in a Sequential model, from the values of the other's params and state."""
    make, counts, layer, _, _ = trained
    params, state = jax.tree.map(lambda v: keras.ops.convert_to_numpy(v.value), (layer.params, layer.state))
    copy = make(params=params, state=state)
    model = keras.Sequential([keras.Input((6, 6, 1)), copy])
    assert counts_of(copy) == counts
    return model


def test_a_layer_of_the_others_params_and_state_is_equal(trained):
    harness.assert_same(harness.numbers(sequential_of(trained)(X)), harness.numbers(trained[3](X)))


def test_saved_and_loaded_is_equal(trained, tmp_path):
    model = sequential_of(trained)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert counts_of(loaded.layers[0]) == trained[1]
    harness.assert_same(loaded.predict(X, verbose=0), trained[3].predict(X, verbose=0))


@pytest.mark.parametrize("trained", EXPORTED, indirect=True)
def test_exported_by_keras_and_loaded_is_equal(trained, tmp_path):
    with jax2tf.patch():  # on the JAX backend Keras calls jax2tf
        sequential_of(trained).export(tmp_path / "served", format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "served")
    served = loaded.serve(X)
    # float16 is rounded at other places in a whole-model graph.
    tolerance = 1e-2 if trained[2].compute_dtype == "float16" else 1e-6
    np.testing.assert_allclose(served, harness.numbers(trained[3](X)), atol=tolerance, rtol=tolerance)


def test_a_subclassed_model_without_build(trained):
    class Model(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.inner = layer

        def call(self, inputs):
            return self.inner(inputs)

    assert np.abs(harness.numbers(Model(trained[0]())(X))).max() > 0


def identity(inputs):
    return inputs


ARGUMENTS = {
    "training in call and not in init": (
        lambda params, state, rng, inputs, training: (inputs, {}),
        lambda rng, inputs: ({}, {}),
    ),
    "another order": (
        lambda training, inputs, rng, state, params: (inputs, {}),
        lambda training, inputs, rng: ({}, {}),
    ),
    "as few as possible": (identity, lambda inputs: {}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_given_by_name(name):
    harness.assert_same(harness.numbers(JaxLayer(*ARGUMENTS[name])(ONE)), ONE)


def test_structures_with_unknown_sizes_that_differ():
    def both(params, inputs):
        a, b = inputs["a"], inputs["b"]
        return jnp.concatenate([a, b], 1), jnp.concatenate([b, a], 1)

    inputs = {name: keras.Input((None, 3), name=name) for name in ("a", "b")}
    model = keras.Model(inputs, JaxLayer(both, params={})(inputs))
    first, second = model({"a": np.ones((2, 6, 3)), "b": np.zeros((2, 7, 3))})
    assert first.shape == second.shape == (2, 13, 3)
    assert harness.numbers(first)[:, :6].all() and not harness.numbers(second)[:, :7].any()


def test_more_unknown_sizes_than_letters():
    inputs = [keras.Input((None, 3)) for _ in range(60)]
    model = keras.Model(inputs, JaxLayer(lambda params, inputs: jnp.concatenate(inputs, 1), params=())(inputs))
    assert model([np.ones((2, 1, 3))] * 60).shape == (2, 60, 3)


def test_a_module_with_state_and_no_params():
    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x):
            count = self.variable("a", "b", lambda: jnp.zeros((), jnp.int32))
            count.value = count.value + 1
            return x

    layer = FlaxLayer(Counter(), variables={"a": {"b": 0}})
    layer(ONE)
    assert not layer.params and int(layer.state["a"]["b"].value) == 1


def pass_on(params, state, inputs):
    return inputs, state


def test_none_in_a_state():
    layer = JaxLayer(pass_on, state={"foo": None})
    assert layer.state["foo"] is None
    layer(ONE)
    assert layer.state["foo"] is None


@jax.tree_util.register_pytree_node_class
class NamedPoint:
    def __init__(self, x, y, name):
        self.x, self.y, self.name = x, y, name

    def tree_flatten(self):
        return (self.x, self.y), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children, name)


def test_registered_classes_in_a_state():
    layer = JaxLayer(pass_on, state=[NamedPoint(1.0, 2.0, "foo")])
    layer(ONE)
    assert layer.state[0].name == "foo" and float(layer.state[0].y.value) == 2.0


STATES = {
    "a list": [0.0],
    "a dict in place of a list": {"state": {"foo": 0.0}},
    "a list in place of a leaf": {"state": [[0.0]]},
    "none": None,
    "a missing key": {"state": {}},
    "a list in a dict": {"state": {"foo": [2.0]}},
}


@pytest.mark.parametrize("name", STATES)
def test_an_update_of_another_structure_is_refused(name):
    with pytest.raises(ValueError, match="state"):
        JaxLayer(lambda params, state, inputs: (inputs, {"state": [jnp.ones([])]}), params={}, state=STATES[name])(ONE)


def test_the_global_seed_decides_the_params():
    def built():
        keras.utils.set_random_seed(0)
        layer = JaxLayer(
            lambda params, inputs: inputs @ params[0], lambda rng, inputs: [jax.random.normal(rng, inputs.shape)]
        )
        layer.build((2, 2))
        return harness.numbers(layer.params[0])

    np.testing.assert_array_equal(built(), built())


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_integers_stay_integers_under_bfloat16(dtype):
    """301 is no bfloat16: an id that went through one is another."""
    seen = []
    layer = JaxLayer(lambda inputs: (seen.append(inputs["ids"].dtype.kind), inputs["ids"] + 0)[1])
    ids = np.array([[1, 301]]).astype(dtype)
    before = keras.config.floatx()
    keras.config.set_floatx("bfloat16")
    try:
        outputs = keras.ops.convert_to_numpy(layer({"ids": ids}))
    finally:
        keras.config.set_floatx(before)
    assert set(seen) <= set("iub")
    np.testing.assert_array_equal(outputs, ids + 0)
