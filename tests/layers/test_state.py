"""State advances as in a hand-written loop, however the layer is called."""

import jax
import numpy as np
import pytest

from tests import harness
from tests.cases import BY_NAME, WITH_STATE, draw_key

STEPS = 3


def batches(case):
    return [jax.tree.map(lambda array, n=n: np.roll(array, n, axis=-1), case.args(4, 8)) for n in range(STEPS)]


@pytest.mark.parametrize("case", WITH_STATE, ids=str)
def test_eager_calls(case):
    layer = harness.built(case)
    want_outputs, want_state = harness.reference_loop(case, layer, batches(case))
    outputs = [harness.numbers(layer(*args, training=True)) for args in batches(case)]
    harness.assert_same((outputs, harness.numbers(layer.state)), (want_outputs, want_state))


@pytest.mark.parametrize("case", WITH_STATE, ids=str)
def test_compiled_function_of_the_user(case):
    layer = harness.built(case)
    want_outputs, want_state = harness.reference_loop(case, layer, batches(case))
    step = harness.compiled(layer, True)
    outputs = [harness.numbers(step(*harness.tensors(args))) for args in batches(case)]
    harness.assert_same((outputs, harness.numbers(layer.state)), (want_outputs, want_state))


@pytest.mark.parametrize("name", ["nested", "rng_and_state", "haiku"])
def test_run_eagerly(name):
    case = BY_NAME[name]
    layer = harness.built(case)
    want_outputs, want_state = harness.reference_loop(case, layer, batches(case))
    with harness.run_eagerly():
        outputs = [harness.numbers(layer(*args, training=True)) for args in batches(case)]
    harness.assert_same((outputs, harness.numbers(layer.state)), (want_outputs, want_state))


@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": False}], ids=str
)
@pytest.mark.parametrize("name", ["rng_and_state", "state"])
def test_fit(name, options):
    """At learning rate zero the state alone says whether each step saw its batch and its draw."""
    case = BY_NAME[name]
    layer = case.layer()
    model = case.functional(layer)
    (x,) = case.args(16, 8)
    rows = [(x[start : start + 4],) for start in (0, 4, 8, 12)] * 2
    _, want = harness.reference_loop(case, layer, rows)
    harness.fit(model, x, epochs=2, learning_rate=0.0, **options)
    harness.assert_same(harness.numbers(layer.state), want)


@pytest.mark.parametrize("case", WITH_STATE, ids=str)
def test_inference_changes_no_variable(case):
    layer = harness.built(case)
    before = harness.numbers(layer.variables)
    layer(*case.args(4, 8))
    layer(*case.args(4, 8), training=False)
    harness.assert_same(harness.numbers(layer.variables), before, 0, 0)


def test_an_empty_state_stays_empty():
    layer = harness.built(BY_NAME["mlp"])
    layer(*BY_NAME["mlp"].args(4, 8), training=True)
    assert jax.tree.leaves(layer.state) == []


def test_draw_keys_are_those_of_the_rule():
    case = BY_NAME["rng_and_state"]
    layer = harness.built(case)
    for n in range(3):
        layer(*case.args(4, 8), training=True)
        np.testing.assert_array_equal(harness.numbers(layer.state)["key"], jax.random.key_data(draw_key(n)))
