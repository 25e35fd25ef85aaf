"""The contract by argument names, for every kind of callable."""

import functools

import numpy as np
import pytest

from jaxbridge.core.functions import CALL_ARGUMENTS, NamedFunction, from_functions, single_input
from jaxbridge.core.pure_model import CallInputs
from jaxbridge.errors import SignatureError, StructureError


class Methods:
    def call(self, inputs, params):
        return ("method", params, inputs)

    @classmethod
    def of_class(cls, params, inputs):
        return ("class", params, inputs)

    @staticmethod
    def of_none(params, inputs):
        return ("static", params, inputs)

    def __call__(self, *, inputs, params):
        return ("object", params, inputs)


def extra(params, inputs, scale):
    return (scale, params, inputs)


def positional(params, inputs, /):
    return ("positional", params, inputs)


@pytest.mark.parametrize(
    ("fn", "mark"),
    [
        (lambda params, inputs: ("lambda", params, inputs), "lambda"),
        (lambda inputs, params: ("swapped", params, inputs), "swapped"),
        (lambda params, *, inputs: ("keyword", params, inputs), "keyword"),
        (positional, "positional"),
        (functools.partial(extra, scale=3), 3),
        (functools.partial(functools.partial(extra, scale=3)), 3),
        (functools.partial(lambda scale, params, inputs: (scale, params, inputs), 4), 4),
        (Methods().call, "method"),
        (Methods.of_class, "class"),
        (Methods.of_none, "static"),
        (Methods(), "object"),
        (functools.wraps(positional)(lambda *args: positional(*args)), "positional"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if callable(value) else "",
)
def test_every_callable_gets_its_arguments(fn, mark):
    named = NamedFunction(fn, "call_fn", CALL_ARGUMENTS, ("inputs",))
    assert named({"inputs": "i", "params": "p", "state": "s"}) == (mark, "p", "i")


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda params, x: x, "Unsupported argument in `call_fn`: `x`"),
        (lambda params: 0, "Missing required argument in `call_fn`: `inputs`"),
        (lambda *args: 0, "`args`"),
        (lambda inputs, **kwargs: 0, "`kwargs`"),
        (functools.partial(lambda inputs: 0, inputs=1), "Missing required argument in `call_fn`: `inputs`"),
        (3, "must be a function"),
    ],
)
def test_what_is_refused(fn, text):
    with pytest.raises(SignatureError, match=text):
        NamedFunction(fn, "call_fn", CALL_ARGUMENTS, ("inputs",))


def test_which_parts_a_model_has():
    model, parts = from_functions(lambda params, rng, inputs, training, mask: inputs)
    assert parts == ("params",) and model.rng_streams == ("rng",) and model.uses_mask
    model, parts = from_functions(lambda state, inputs: (inputs, state))
    assert parts == ("state",) and model.rng_streams == () and not model.uses_mask


def test_apply_always_returns_the_state():
    model, _ = from_functions(lambda params, inputs: inputs + params)
    assert model.apply(1, "state", None, CallInputs((2,)), False) == (3, "state")


@pytest.mark.parametrize("result", [3, (1, 2, 3), np.zeros(3)], ids=str)
def test_a_stateful_function_must_return_a_pair(result):
    model, _ = from_functions(lambda state, inputs: result)
    with pytest.raises(StructureError, match="tuple of two"):
        model.apply(None, {}, None, CallInputs((2,)), False)


@pytest.mark.parametrize(
    ("inputs", "want"),
    [
        (CallInputs((1,)), 1),
        (CallInputs((1, 2)), (1, 2)),
        (CallInputs(({"a": 1},)), {"a": 1}),
        (CallInputs((), {"a": 1}), {"a": 1}),
    ],
    ids=str,
)
def test_single_input(inputs, want):
    assert single_input(inputs) == want


def test_positional_and_named_inputs_do_not_mix():
    with pytest.raises(SignatureError, match="one dict or tuple"):
        single_input(CallInputs((1,), {"a": 2}))
