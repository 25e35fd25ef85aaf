"""Sizes written as text: split, evaluated, solved."""

import random

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbridge.core import dims
from jaxbridge.core.shapes import make_signature
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
        ("b^2 + 1", 10),
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
        ([["b1 + 2*b2", "4*b2", "b1*b1 + 16"]], [[12, 16, 32]], {"b1": 4, "b2": 4}),
        ([["2*(a + 3) - a", "(b - 1)*2"]], [[12, 8]], {"a": 6, "b": 5}),
        ([["max(a, b)", "b", "a - b"]], [[6, 2, 4]], {"a": 6, "b": 2}),
        ([["floordiv(b, 2) + a", "b"]], [[7, 5]], {"a": 5, "b": 5}),
    ],
)
def test_solve(texts, sizes, env):
    assert dims.solve(texts, sizes) == env


@pytest.mark.parametrize("text", ["a + b", "a*b", "a^2", "a*a + 16", "mod(a, 3)", "max(a, 2)"])
def test_solve_leaves_what_cannot_be_found(text):
    assert dims.solve([[text]], [[9]]) == {}


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


# What `jax.export` itself says of sizes, as the oracle.

_SIZES = st.recursive(
    st.sampled_from(["a", "b", "c", "2*a", "3*b", "c + 1", "2", "5"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, st.sampled_from(["2", "3", "b"])).map(
            lambda p: f"{p[0]}({p[1]}, {p[2]})"
        ),
        st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        inner.map(lambda size: f"({size})^2"),
    ),
    max_leaves=3,
)
_CONSTRAINTS = st.lists(
    st.sampled_from(["a >= 2", "b <= 3", "a == 2*b", "c >= a", "mod(c, 2) == 0", "max(a, b) <= 4"]),
    max_size=2,
    unique=True,
)


def jax_takes(texts, constraints):
    """Returns a function from sizes to whether `jax.export` takes them; None where it refuses the declaration."""
    try:
        shape = jax.export.symbolic_shape(dims.join_shape(texts), constraints=constraints)
        exported = jax.export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct(shape, np.int8))
    except Exception:  # ValueError and others that have no public names
        return None

    def takes(sizes):
        try:
            jax.eval_shape(exported.call, jax.ShapeDtypeStruct(sizes, np.int8))
        except ValueError:
            return False
        return True

    return takes


def accepts(signature, sizes):
    try:
        signature.check([sizes])
    except ShapeError:
        return False
    return True


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(_SIZES, min_size=1, max_size=4),
    _CONSTRAINTS,
    st.tuples(*[st.integers(1, 6)] * 3),
    st.integers(-1, 1),
    st.integers(0, 3),
)
def test_declarations_mean_what_they_mean_to_jax_export(texts, constraints, values, change, axis):
    oracle = jax_takes(texts, constraints)
    try:
        signature = make_signature(
            ((None,) * len(texts),), ("int8",), declared=(dims.join_shape(texts),), constraints=tuple(constraints)
        )
        solved = dims.solve(signature.normal_sizes, [[1] * len(texts)])
    except ShapeError:
        assert oracle is None
        return
    if oracle is None:
        assert not set(signature.symbols()) <= solved.keys()
        return
    sizes = [dims.evaluate(text, dict(zip("abc", values, strict=True))) for text in texts]
    sizes[axis % len(sizes)] += change
    sizes = [max(size, 0) for size in sizes]
    if 0 in dims.solve(signature.normal_sizes, [sizes]).values():
        return  # here symbols may be 0, for a batch without rows
    assert accepts(signature, sizes) == oracle(tuple(sizes)), sizes
