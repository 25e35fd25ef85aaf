"""Sizes written as text: split, evaluated, solved."""

import random

import pytest

from jaxbridge.core import dims
from jaxbridge.errors import ShapeError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("(b, t, 3)", ["b", "t", "3"]),
        ("b, t, 3", ["b", "t", "3"]),
        ("(b,)", ["b"]),
        ("b", ["b"]),
        ("()", []),
        ("", []),
        ("(b, ...)", ["b", "..."]),
        ("(max(a, b), 4*k)", ["max(a, b)", "4*k"]),
        ("(b, floordiv(t, 2) + 1)", ["b", "floordiv(t, 2) + 1"]),
        (" ( _ , 2 ) ", ["_", "2"]),
    ],
)
def test_split_shape(text, sizes):
    assert dims.split_shape(text) == sizes
    assert dims.split_shape(dims.join_shape(sizes)) == sizes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("a", 5),
        ("4*a + b", 23),
        ("a - b", 2),
        ("-b + a", 2),
        ("a // b", 1),
        ("floordiv(a, 2)", 2),
        ("mod(a, b)", 2),
        ("a % b", 2),
        ("max(a, b)", 5),
        ("min(a, b)", 3),
        ("max(b, a + 1)", 6),
        ("a**2", 25),
    ],
)
def test_evaluate(text, value):
    assert dims.evaluate(text, {"a": 5, "b": 3}) == value


@pytest.mark.parametrize("text", ["a +", "a.b", "f(a)", "a if b else c", "'a'", "1.5"])
def test_what_cannot_be_evaluated(text):
    with pytest.raises(ShapeError, match="cannot be read"):
        dims.evaluate(text, {"a": 5, "b": 3})


def test_a_symbol_without_a_value():
    with pytest.raises(ShapeError, match="symbol 'c' does not follow"):
        dims.evaluate("a + c", {"a": 5})


@pytest.mark.parametrize(
    ("constraint", "value"),
    [("a >= 2", True), ("a <= b", False), ("a == b + 2", True), ("a >= 6", False), ("mod(a, 2) == 0", False)],
)
def test_holds(constraint, value):
    assert dims.holds(constraint, {"a": 5, "b": 3}) is value


@pytest.mark.parametrize("text", ["a > 2", "a", ">= 2", "a !! 2"])
def test_what_is_no_constraint(text):
    with pytest.raises(ShapeError, match="constraint"):
        dims.split_constraint(text)


@pytest.mark.parametrize(
    ("texts", "sizes", "env"),
    [
        ([["b", "3"]], [[2, 3]], {"b": 2}),
        ([["b", "4*k"]], [[2, 12]], {"b": 2, "k": 3}),
        ([["b", "4*k"], ["k"]], [[2, 12], [3]], {"b": 2, "k": 3}),
        ([["2*k + 1"]], [[9]], {"k": 4}),
        ([["a + b", "b"]], [[9, 4]], {"a": 5, "b": 4}),
        ([["a + b", "b + c", "c"]], [[9, 5, 2]], {"a": 6, "b": 3, "c": 2}),
        ([["b"], ["b"]], [[2], [3]], {"b": 2}),
    ],
)
def test_solve(texts, sizes, env):
    assert dims.solve(texts, sizes) == env


def test_solve_leaves_what_cannot_be_found():
    assert dims.solve([["a + b"]], [[9]]) == {}


def test_solve_inverts_evaluate():
    rng = random.Random(0)
    for _ in range(200):
        env = {name: rng.randint(1, 30) for name in "abc"}
        texts = ["a", f"{rng.randint(1, 5)}*b + {rng.randint(0, 4)}", f"c + {rng.randint(1, 3)}*a + b"]
        rng.shuffle(texts)
        assert dims.solve([texts], [[dims.evaluate(text, env) for text in texts]]) == env


@pytest.mark.parametrize(
    ("text", "names"), [("4*k", ["k"]), ("a + b - a", ["a", "b"]), ("max(a, 2)", ["a"]), ("_", []), ("3", [])]
)
def test_symbols_in(text, names):
    assert dims.symbols_in(text) == names
