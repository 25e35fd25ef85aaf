"""`jaxbridge.Sequential` gives what `keras.Sequential` gives of the same layers, with one function in the place of several."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxbridge
from jaxbridge import FlaxLayer, JaxLayer, jax2tf
from jaxbridge.core.programs import PROGRAMS
from jaxbridge.errors import StructureError
from tests.harness import ATOL, RTOL, assert_same, numbers
from tests.models import serializable
from tests.traces import note_trace, traces_of

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
TOKENS = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 1, 1, 2]], "int32")


@serializable
def block_init(rng, inputs):
    return {"w": jax.random.normal(rng, (4, 4)) / 2}, {"mean": jnp.zeros(4)}


@serializable
def block_call(params, state, rng, inputs, training):
    """Weights, state and draws, in few operations: most of the time of these tests is compilation."""
    note_trace()
    x = inputs @ params["w"].astype(inputs.dtype) - state["mean"].astype(inputs.dtype)
    if training:
        state = {"mean": 0.9 * state["mean"] + 0.1 * x.mean(0).astype(jnp.float32)}
        x = jnp.where(jax.random.bernoulli(rng, 0.7, x.shape), x, 0)
    return inputs + x, state


class Taking(nn.Module):
    """Takes what `Giving` gives."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(inputs["a"]) + inputs["b"][0].astype(jnp.float32)


class Giving(nn.Module):
    @nn.compact
    def __call__(self, x):
        return {"a": nn.Dense(2)(x), "b": (jnp.argmax(x, -1, keepdims=True),)}


def masked_mean(inputs, mask):
    weights = jnp.ones(inputs.shape[:2]) if mask is None else mask.astype(jnp.float32)
    return (inputs * weights[..., None]).sum(1) / weights.sum(1, keepdims=True)


class Doubling(JaxLayer):
    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


def block(n, **options):
    return JaxLayer(block_call, block_init, seed=n, name=f"block_{n}", **options)


def blocks(count, **options):
    return [block(n, **options) for n in range(count)]


def passing():
    layer = JaxLayer(lambda inputs: jnp.tanh(inputs), name="passing")
    layer.supports_masking = True
    return layer


def regularized():
    layer = block(1)
    layer.regularize("*w", keras.regularizers.L2(0.1))
    return layer


def twice():
    layer = block(0)
    return [layer, layer]


def frozen(layer):
    layer.trainable = False
    return layer


def sown():
    return [FlaxLayer(Sowing(), collections={"penalty": "loss"}, name=f"sown_{n}") for n in range(2)]


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        self.sow("penalty", "l2", jnp.sum(x**2))
        return x


EMBED = lambda: keras.layers.Embedding(5, 4, mask_zero=True, name="embed")

#: name -> the layers, the input, and how many layers are called together ([] where none are).
ROWS = {
    "a native layer between": (lambda: [*blocks(3), keras.layers.Dense(4, name="d"), block(3), block(4)], X, [3, 2]),
    "outputs that are no array": (lambda: [FlaxLayer(Giving(), name="g"), FlaxLayer(Taking(), name="t")], X, [2]),
    "integers first": (
        lambda: [FlaxLayer(nn.Embed(5, 4), name="e"), FlaxLayer(nn.Dense(4), name="d")],
        TOKENS,
        [2],
    ),
    "a policy": (lambda: blocks(2, dtype="mixed_bfloat16"), X, [2]),
    "another policy": (lambda: [block(0), block(1, dtype="mixed_bfloat16")], X, []),
    "another dtype between": (
        lambda: [block(0), JaxLayer(lambda inputs: inputs.astype(jnp.bfloat16), name="low"), block(1)],
        X,
        [3],
    ),
    "frozen": (lambda: [frozen(block(0)), block(1)], X, [2]),
    "losses of the modules": (sown, X, [2]),
    "regularizers": (lambda: [block(0), regularized()], X, [2]),
    "an activity regularizer": (lambda: [block(0), block(1, activity_regularizer="l2"), block(2)], X, []),
    "a shape hook": (lambda: [block(0), block(1, compute_output_shape_fn=lambda shape: shape)], X, []),
    "declared shapes first": (lambda: [block(0, polymorphic_shapes="(b, 4)"), block(1)], X, [2]),
    "declared shapes": (lambda: [block(0), block(1, polymorphic_shapes="(b, 4)")], X, []),
    "a subclass": (lambda: [block(0), Doubling(jnp_tanh, name="doubling")], X, []),
    "one layer twice": (twice, X, []),
    "a mask": (lambda: [EMBED(), passing(), JaxLayer(masked_mean, name="mean")], TOKENS, [2]),
    "a mask that is dropped": (lambda: [EMBED(), no_mask(), JaxLayer(masked_mean, name="mean")], TOKENS, [2]),
}


def no_mask():
    return JaxLayer(jnp_tanh, name="no_mask")


def jnp_tanh(inputs):
    return jnp.tanh(inputs)


def made(cls, layers, x):
    keras.utils.set_random_seed(3)
    model = cls([keras.Input(x.shape[1:], dtype=x.dtype.name), *layers()], name="net")
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=False)
    return model


def values(model):
    """Every variable by its path, the seed states too."""
    return {v.path: v.value for v in model.variables}


@pytest.mark.filterwarnings("ignore:Layer 'no_mask':UserWarning")  # Keras' own: it destroys the mask
@pytest.mark.parametrize("name", ROWS)
def test_the_numbers_are_those_of_keras(name):
    layers, x, together = ROWS[name]
    want, got = made(keras.Sequential, layers, x), made(jaxbridge.Sequential, layers, x)
    assert [len(run) for run in runs(got) if len(run) > 1] == together
    assert_same(numbers(got(x)), numbers(want(x)), *tolerance(name))
    y = np.ones(numbers(want(x)).shape, "float32")
    for _ in range(2):  # the second sees what the first changed, and draws anew
        assert_same(got.train_on_batch(x, y), want.train_on_batch(x, y), *tolerance(name))
    assert_same(numbers(values(got)), numbers(values(want)), *tolerance(name))


def tolerance(name):
    # Other fusions round bfloat16, of 8 bits, elsewhere.
    return (0.05, 0.05) if "policy" in name or "dtype" in name else (10 * RTOL, 10 * ATOL)


def runs(model):
    """The groups of layers that the model calls."""
    inner = model._runs.model
    return [] if inner is None else [layer._parts.layers for layer in inner.layers[1:]]


def chained(count):
    return made(jaxbridge.Sequential, lambda: blocks(count), X)


def test_equal_blocks_are_traced_once():
    traces = []
    for count in (2, 6):
        PROGRAMS.clear()
        traces.append(traces_of(lambda count=count: chained(count).train_on_batch(X, X))[0])
    assert 0 < traces[0] == traces[1]


@pytest.mark.keras_backends("tensorflow")
def test_a_chain_is_one_op():
    import tensorflow as tf

    model = chained(5)
    before = jax2tf.stats()
    graph = tf.function(lambda x: model(x), autograph=False).get_concrete_function(tf.constant(X)).graph
    made_now = jax2tf.stats() - before
    ops = [op for op in graph.get_operations() if op.type == "XlaCallModule"]
    assert (len(ops), made_now.lowerings, made_now.emissions) == (1, 1, 1)


def test_a_second_model_makes_nothing_new():
    chained(3).train_on_batch(X, X)
    misses = PROGRAMS.misses
    chained(3).train_on_batch(X, X)
    assert PROGRAMS.misses == misses


def test_layers_may_be_added_and_taken_away():
    model = chained(2)
    model.add(block(2))
    assert [len(run) for run in runs(model)] == [3]
    model.pop()
    model.pop()
    assert runs(model) == []
    want = model.layers[0](X)
    assert_same(numbers(model(X)), numbers(want))


def test_a_failing_layer_writes_nothing():
    def grow(state, inputs):
        return inputs, {"n": jnp.ones(2 if training_calls else 1)}

    training_calls = []
    counted = JaxLayer(grow, state={"n": np.zeros(1, "float32")}, name="grow")
    model = made(jaxbridge.Sequential, lambda: [block(0), counted], X)
    before = numbers({v.path: v.value for v in model.weights})
    training_calls.append(1)
    with pytest.raises(StructureError, match="state"):
        model(X, training=True)
    assert_same(numbers({v.path: v.value for v in model.weights}), before)


def test_inside_another_model():
    inputs = keras.Input((4,))
    inner = chained(3)
    model = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
    model.compile("sgd", "mse")
    before = numbers(inner.trainable_variables)
    model.fit(X, np.ones((6, 2)), verbose=0)
    assert all(not np.array_equal(a, b) for a, b in zip(numbers(inner.trainable_variables), before, strict=True))


def test_without_an_input_layer():
    model = jaxbridge.Sequential(blocks(2))
    want = keras.Sequential(blocks(2))
    model.build((None, 4)), want.build((None, 4))
    want.set_weights(model.get_weights())
    assert_same(numbers(model(X)), numbers(want(X)), 10 * RTOL, 10 * ATOL)
    assert [len(run) for run in runs(model)] == [2]


def test_a_flag_that_only_the_graph_knows():
    model, want = chained(2), made(keras.Sequential, lambda: blocks(2), X)

    def call(of, flag):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            return tf.function(lambda x, f: of(x, training=f), autograph=False)(X, tf.constant(flag))
        return of(X, training=flag)

    for flag in (True, False):
        assert_same(numbers(call(model, flag)), numbers(call(want, flag)), 10 * RTOL, 10 * ATOL)


@pytest.mark.keras_backends("tensorflow")
def test_what_can_only_be_traced_alone_is_called_alone():
    """The size that the second layer sees is `t - 1`, which may be 0, or an unknown one of its own."""
    import tensorflow as tf

    layers = [
        JaxLayer(lambda inputs: inputs[:, 1:], name="rest"),
        JaxLayer(lambda inputs: jax.lax.slice_in_dim(inputs, 0, 1, axis=1), name="first"),
    ]
    model = jaxbridge.Sequential([keras.Input((None, 4)), *layers])
    assert [len(run) for run in runs(model)] == [2]
    concrete = tf.function(lambda x: model(x), autograph=False).get_concrete_function(tf.TensorSpec((None, None, 4)))
    assert sum(op.type == "XlaCallModule" for op in concrete.graph.get_operations()) == 2
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    np.testing.assert_array_equal(concrete(tf.constant(x)), x[:, 1:2])


def test_files_are_those_of_keras(tmp_path):
    model, other = chained(3), made(keras.Sequential, lambda: blocks(3), X)
    model.train_on_batch(X, X)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert type(loaded) is jaxbridge.Sequential and runs(loaded)
    model.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    for copy in (loaded, other):
        assert_same(numbers(copy(X, training=True)), numbers(model(X, training=True)), 10 * RTOL, 10 * ATOL)
        model.load_weights(tmp_path / "a.weights.h5")  # the draws start again
    assert json.loads(keras.models.clone_model(model).to_json())["class_name"] == "Sequential"


@pytest.mark.slow
def test_exported_and_served(tmp_path):
    model = chained(2)
    model.train_on_batch(X, X)
    report = jaxbridge.export_saved_model(model, tmp_path / "served")
    assert report.has_gradients and report.verification.max_difference < 1e-5
