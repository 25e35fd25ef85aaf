"""Draws: distinct, reproducible by plain jax.random, made by the rule that core/prng.py states."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from tests import harness, models
from tests.cases import BY_NAME, CASES, DRAWING, SEED, draw_key, floats, init_key, stream_key

DRAWS = 8


def mask_call(rng, inputs, training):
    """Returns the dropout mask itself."""
    if not training:
        return jnp.ones_like(inputs)
    return jax.random.bernoulli(rng, 0.5, inputs.shape).astype(inputs.dtype)


def masks(layer, x):
    return [harness.numbers(layer(x, training=True)) for _ in range(DRAWS)]


def expected_masks(x, seed=SEED):
    return [np.asarray(jax.random.bernoulli(draw_key(n, seed), 0.5, x.shape), "float32") for n in range(DRAWS)]


def draws_made(layer):
    return int(harness.numbers(layer.seed_generator.state)[1])


def test_eight_calls_draw_eight_distinct_masks_of_the_rule():
    x = floats(4, 16)
    drawn = masks(JaxLayer(mask_call, seed=SEED), x)
    assert len({mask.tobytes() for mask in drawn}) == DRAWS
    harness.assert_same(drawn, expected_masks(x))


def test_eight_compiled_calls_draw_the_same():
    x = floats(4, 16)
    layer = JaxLayer(mask_call, seed=SEED)
    layer(x)
    step = harness.compiled(layer, True)
    harness.assert_same([harness.numbers(step(*harness.tensors((x,)))) for _ in range(DRAWS)], expected_masks(x))


def test_fit_draws_the_same():
    """Each step adds its mask, weighted by 2**n, to a state: a sum that only these masks in this order give."""

    def call(state, rng, inputs, training):
        if not training:
            return inputs, state
        mask = jax.random.bernoulli(rng, 0.5, inputs.shape).astype("float32")
        return inputs, {"n": state["n"] + 1, "sum": state["sum"] + mask * 2.0 ** state["n"]}

    x = floats(4, 16)
    state = {"n": np.zeros((), "float32"), "sum": np.zeros((4, 16), "float32")}
    layer = JaxLayer(call, state=state, seed=SEED)
    model = keras.Sequential([keras.Input((16,), batch_size=4), layer, keras.layers.Dense(1)])
    harness.fit(model, x, epochs=DRAWS)
    want = sum(mask * 2.0**n for n, mask in enumerate(expected_masks(x)))
    harness.assert_same(harness.numbers(layer.state)["sum"], want.astype("float32"))


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_a_training_call_advances_by_one(case):
    layer = harness.built(case)
    for n in (1, 2):
        layer(*case.args(3, 8), training=True)
        assert draws_made(layer) == n


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_inference_does_not_advance(case):
    layer = harness.built(case)
    layer(*case.args(3, 8), training=False)
    assert draws_made(layer) == 0


@pytest.mark.parametrize("case", [case for case in CASES if not case.draws], ids=str)
def test_what_never_draws_has_no_seed_variable(case):
    layer = harness.built(case)
    layer(*case.args(3, 8), training=True)
    assert layer.seed_generator is None
    assert len(layer.variables) == len(layer.weights)


@pytest.mark.parametrize("case", [case for case in CASES if case.reference_init], ids=str)
def test_initial_values_are_those_of_the_rule(case):
    # Placeholders are ones, and Python numbers become arrays.
    args = jax.tree.map(np.ones_like, case.args(2, 8))
    want = jax.tree.map(jnp.asarray, case.reference_init(init_key(), args))
    params, state = harness.values_of(harness.shared(case))
    harness.assert_same(params, harness.numbers(want[0]))
    if case.has_state:
        harness.assert_same(state, harness.numbers(want[1]))


def test_a_stream_of_a_module_draws_by_its_name():
    class Noise(models.nn.Module):
        @models.nn.compact
        def __call__(self, x, training):
            return jax.random.normal(self.make_rng("noise"), x.shape) if training else x

    x = floats(2, 3)
    layer = FlaxLayer(Noise(), rngs=("noise",), seed=3)
    layer(x)
    module_key = stream_key(draw_key(0, 3), "noise")
    want, _ = Noise().apply({}, x, True, rngs={"noise": module_key}, mutable=[])
    harness.assert_same(harness.numbers(layer(x, training=True)), np.asarray(want))


def test_a_stream_that_the_module_asks_for_is_found():
    layer = harness.shared(BY_NAME["cnn"])
    assert layer.seed_generator is not None


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_every_seed_of_32_bits(seed):
    x = floats(4, 16)
    harness.assert_same(masks(JaxLayer(mask_call, seed=seed), x), expected_masks(x, seed))


def test_set_random_seed_decides_unseeded_layers():
    x = floats(4, 16)

    def run(global_seed):
        keras.utils.set_random_seed(global_seed)
        layer = JaxLayer(models.noisy_call, models.dense_init)
        return harness.numbers([layer(x), layer(x, training=True)])

    first = run(1)
    harness.assert_same(run(1), first, 0, 0)
    assert all((a != b).any() for a, b in zip(first, run(2), strict=True))


def test_two_unseeded_layers_draw_differently():
    x = floats(4, 16)
    one, two = JaxLayer(mask_call), JaxLayer(mask_call)
    assert (harness.numbers(one(x, training=True)) != harness.numbers(two(x, training=True))).any()


def test_call_rng_hook_may_return_a_structure_and_draw_at_inference():
    class Twice(JaxLayer):
        def _get_call_rng(self, training):
            return {"a": self._get_call_seed(), "b": self._get_call_seed()}

    def call(rng, inputs):
        return {name: jax.random.normal(key, inputs.shape) for name, key in rng.items()}

    x = floats(2, 3)
    layer = Twice(call, seed=SEED)
    want = {name: np.asarray(jax.random.normal(draw_key(n), x.shape)) for n, name in enumerate("ab")}
    harness.assert_same(harness.numbers(layer(x, training=False)), want)
    assert draws_made(layer) == 2


def test_init_rng_hook_may_return_a_structure():
    class Split(JaxLayer):
        def _get_init_rng(self):
            return {"w": self._get_init_seed(), "b": self._get_init_seed()}

    def init(rng, inputs):
        return {name: jax.random.normal(key, (3,)) for name, key in rng.items()}

    layer = Split(lambda params, inputs: inputs * params["w"] + params["b"], init, seed=SEED)
    layer(floats(2, 3))
    params = harness.numbers(layer.params)
    harness.assert_same(params["w"], np.asarray(jax.random.normal(init_key(), (3,))))
    assert (params["b"] != params["w"]).any()


def test_rng_is_none_at_inference_and_raw_in_training():
    seen = []

    def call(rng, inputs, training):
        seen.append((training, None if rng is None else (rng.shape, rng.dtype)))
        return inputs

    layer = JaxLayer(call)
    layer(floats(2, 3))
    layer(floats(2, 3), training=True)
    assert (False, None) in seen
    assert (True, ((2,), jnp.uint32)) in seen
    assert all((rng is not None) == training for training, rng in seen)
