"""Outputs equal those of the pure function, at every size, outside graphs and in them."""

import jax
import numpy as np
import pytest

from tests import harness
from tests.cases import BY_NAME, CASES, draw_key


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inference_equals_the_pure_function(case):
    layer = harness.shared(case)
    args = case.args(3, 8)
    want, _ = case.reference(*harness.values_of(layer), None, args, False)
    harness.assert_same(harness.numbers(layer(*args)), harness.numbers(want))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_equals_the_pure_function(case):
    layer = harness.built(case)
    args = case.args(3, 8)
    want, _ = case.reference(*harness.values_of(layer), draw_key(0) if case.draws else None, args, True)
    harness.assert_same(harness.numbers(layer(*args, training=True)), harness.numbers(want))


@pytest.mark.parametrize(
    ("case", "batch"), [(case, batch) for case in CASES for batch in (0, 1) if batch or case.empty], ids=str
)
def test_every_batch_size_in_a_functional_model(case, batch):
    layer = case.layer()
    model = case.functional(layer)
    x = case.model_input(batch)
    want, _ = case.reference(*harness.values_of(layer), None, case.args(batch, 8), False)
    harness.assert_same(harness.numbers(model(x)), harness.numbers(want))


@pytest.mark.parametrize("case", [case for case in CASES if len(case.unknown) > 1], ids=str)
def test_unknown_sizes_are_served_at_other_sizes(case):
    layer = case.layer()
    model = case.functional(layer)
    for size in (4, 12):
        want, _ = case.reference(*harness.values_of(layer), None, case.args(2, size), False)
        harness.assert_same(harness.numbers(model(case.model_input(2, size))), harness.numbers(want))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_function_of_the_user_gives_the_same(case):
    layer = harness.shared(case)
    args = case.args(3, 8)
    want, _ = case.reference(*harness.values_of(layer), None, args, False)
    got = harness.compiled(layer, False)(*harness.tensors(args))
    harness.assert_same(harness.numbers(got), harness.numbers(want))


@pytest.mark.parametrize("name", ["nested", "cnn", "transformer", "haiku"])
def test_eager_mode_gives_the_same(name):
    case = BY_NAME[name]
    layer = harness.shared(case)
    args = case.args(3, 8)
    want, _ = case.reference(*harness.values_of(layer), None, args, False)
    with harness.run_eagerly():
        got = harness.numbers(layer(*args))
    harness.assert_same(got, harness.numbers(want))


@pytest.mark.parametrize("name", ["pair", "dicts", "haiku", "cnn"])
def test_predict_equals_calls(name):
    case = BY_NAME[name]
    layer = case.layer()
    model = case.functional(layer)
    want = harness.numbers(model(case.model_input(5)))
    got = model.predict(case.model_input(5), batch_size=2, verbose=0)
    # predict cuts five rows into batches of two, two and one.
    harness.assert_same(jax.tree.map(np.asarray, got), want)
