"""Gradients for the variables and for the inputs equal those of jax.grad."""

import pytest

from tests import harness
from tests.cases import BY_NAME, CASES, draw_key

#: A gradient sums over the batch and over time on top of what an output sums over.
RTOL, ATOL = 5e-5, 5e-6


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_those_of_jax(case, training):
    layer = harness.built(case)
    args = case.args(3, 8)
    key = draw_key(0) if case.draws and training else None
    want = harness.reference_gradients(case, layer, args, key, training)
    harness.assert_same(harness.layer_gradients(layer, args, training), want, RTOL, ATOL)


@pytest.mark.parametrize("name", ["custom_vjp", "cnn"])
def test_gradients_of_an_eager_call(name):
    case = BY_NAME[name]
    layer = harness.built(case)
    args = case.args(3, 8)
    want = harness.reference_gradients(case, layer, args, draw_key(0) if case.draws else None, True)
    harness.assert_same(harness.layer_gradients(layer, args, True, jit=False), want, RTOL, ATOL)


def test_the_table_reaches_every_weight():
    """The comparison above could not fail for a weight whose gradient is zero."""
    case = BY_NAME["params"]
    layer = harness.built(case)
    for_weights, for_inputs = harness.layer_gradients(layer, case.args(3, 8), True)
    assert all((gradient != 0).any() for gradient in [*for_weights, *for_inputs])
