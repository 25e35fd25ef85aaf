"""NNX modules in Keras against plain NNX."""

import jax
import keras
import numpy as np
import optax
import pytest
from flax import nnx

from jaxbridge import FlaxLayer
from tests import harness
from tests.adapters import modules as m

ON_JAX = harness.BACKEND == "jax"
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 4)).astype("float32")
STEPS, RATE = 20, 0.1


def plain_loop(module, steps):
    """The loop that a user of NNX writes; returns the losses."""
    optimizer = nnx.Optimizer(module, optax.sgd(RATE), wrt=nnx.Param)
    module.train()

    @nnx.jit
    def step(module, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(lambda module: ((module(x) - y) ** 2).mean())(module)
        optimizer.update(module, gradients)
        return loss

    return [float(step(module, optimizer, X, Y)) for _ in range(steps)]


def values(module):
    return {"/".join(map(str, path)): v.get_value() for path, v in nnx.to_flat_state(nnx.state(module))}


@pytest.mark.parametrize("seed", [0, 1])
def test_fit_equals_a_hand_written_loop(seed):
    make = lambda: m.NNXBlock(3, 4, rngs=nnx.Rngs(seed))
    layer = FlaxLayer(make(), name="net")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    history = model.fit(X, Y, batch_size=16, epochs=STEPS, shuffle=False, verbose=0)
    module = make()
    losses = plain_loop(module, STEPS)
    # The same float32 operations: compiled as one program by JAX, and by TensorFlow.
    tolerance = 1e-5 if ON_JAX else 1e-4
    np.testing.assert_allclose(history.history["loss"], losses, rtol=tolerance)
    want = values(module)
    for variable in layer.weights:
        name = variable.path.partition("net/")[2].partition("/")[2]
        got = harness.numbers(variable)
        value = want.pop(name)
        value = jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value
        np.testing.assert_allclose(got, value, rtol=tolerance, atol=tolerance, err_msg=name)
    assert not want
    module.eval()
    np.testing.assert_allclose(model.predict(X, verbose=0), module(X), rtol=tolerance, atol=tolerance)


def test_at_inference_a_row_does_not_depend_on_its_batch():
    layer = FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(0)))
    layer(X, training=True)
    whole = harness.numbers(layer(X))
    for index in (0, 7):
        # A product of other shape is summed in another order.
        np.testing.assert_allclose(harness.numbers(layer(X[index : index + 1])), whole[index : index + 1], rtol=1e-5)


def test_inference_writes_nothing():
    layer = FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(0)))
    layer(X)
    before = harness.numbers(layer.variables)
    layer(X)
    harness.assert_same(harness.numbers(layer.variables), before, 0, 0)


def test_the_module_is_not_changed_by_training():
    module = m.NNXBlock(3, 4, rngs=nnx.Rngs(0))
    before = {name: np.asarray(v) for name, v in values(module).items() if v.dtype == "float32"}
    layer = FlaxLayer(module)
    layer(X, training=True)
    after = values(module)
    assert all((before[name] == np.asarray(after[name])).all() for name in before)


def test_equal_modules_share_what_was_traced():
    first, second = (FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(seed))) for seed in (0, 1))
    first(X), second(X)
    assert first._runtime.key is not None and first._runtime.key == second._runtime.key
    [[(_, one)], [(_, other)]] = (layer._runtime._programs.values() for layer in (first, second))
    assert one is other


def test_a_shared_submodule_is_one_set_of_variables():
    layer = FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(0)))
    layer(X)
    paths = [v.path.split("/", 1)[1] for v in layer.weights]
    assert sum("kernel" in path for path in paths) == 3  # first, layers/0 (also `again`), layers/1


@pytest.mark.parametrize(("seed", "drawn"), [(None, "state"), (3, "layer")])
def test_who_draws(seed, drawn):
    layer = FlaxLayer(m.NNXBlock, args=(3, 4), seed=seed)
    first, second = (harness.numbers(layer(X, training=True)) for _ in range(2))
    assert (first != second).any()
    has_keys = any(v.path.endswith("rngs/key") for v in layer.weights)
    assert has_keys == (drawn == "state") and (layer.seed_generator is None) == (drawn == "state")
