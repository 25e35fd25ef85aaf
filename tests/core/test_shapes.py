"""Signatures: which sizes are symbols, and which arrays agree with them."""

import pytest

from jaxbridge.core.shapes import ArraySpec, make_signature
from jaxbridge.errors import ShapeError


def signature(*shapes, **options):
    return make_signature(shapes, ("float32",) * len(shapes), **options)


@pytest.mark.parametrize(
    ("shapes", "options", "named"),
    [
        ([(2, 3)], {}, ["(2, 3)"]),
        ([(None, 3)], {}, ["(batch, 3)"]),
        ([(None,)], {}, ["(batch,)"]),
        ([()], {}, ["()"]),
        ([(None, None, None)], {}, ["(batch, size_1, size_2)"]),
        ([(None, 3), (None, None)], {}, ["(batch, 3)", "(batch, size_1_1)"]),
        ([(None, 5, None)], {}, ["(batch, 5, size_2)"]),
        ([(None, 5)], {"constraints": ("size_1 <= 64",)}, ["(batch, size_1)"]),
        ([(4, 5)], {"constraints": ("batch >= 2",)}, ["(batch, 5)"]),
        ([(None, 3), (2, 5)], {"constraints": ("size_1_1 >= 2",)}, ["(batch, 3)", "(2, size_1_1)"]),
        (
            [(None, 3), (None, 5)],
            {"declared": (None, "(_, k)"), "constraints": ("size_1 <= k",)},
            ["(batch, size_1)", "(batch, k)"],
        ),
        ([(4, 3), (4, 2)], {"symbolic_batch": True}, ["(batch, 3)", "(batch, 2)"]),
        ([(4, 3), (5, 2)], {"symbolic_batch": True}, ["(batch, 3)", "(batch_1, 2)"]),
        ([(4, 3), (1, 2)], {"symbolic_batch": True}, ["(batch, 3)", "(1, 2)"]),
        ([(1, 3)], {"symbolic_batch": True}, ["(batch, 3)"]),
        ([(None, None)], {"declared": ("(b, 4*k)",)}, ["(b, 4*k)"]),
        ([(None, None, 3)], {"declared": ("(b, _, 3)",)}, ["(b, size_1, 3)"]),
        ([(None, None, 3)], {"declared": ("(b, ...)",)}, ["(b, size_1, 3)"]),
        ([(None, 3), (None, 2)], {"declared": ("(b, 3)", None)}, ["(b, 3)", "(b, 2)"]),
        ([(None, None)], {"declared": ("(batch_, batch)",)}, ["(batch_, batch)"]),
        ([(None, None)], {"declared": ("(_, batch)",)}, ["(batch_, batch)"]),
    ],
    ids=str,
)
def test_names(shapes, options, named):
    assert list(signature(*shapes, **options).shapes) == named


def test_structs_share_one_scope():
    one, two = signature((None, 3), (None, None)).structs()
    assert one.shape[0] == two.shape[0] and two.shape[1] != two.shape[0]


def test_keras_shapes():
    assert signature((None, 3), declared=("(b, 3)",)).keras_shapes() == [(None, 3)]


@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((None, 3), {"declared": ("(b, 3, 1)",)}, "rank 3.*rank 2"),
        ((None, 3), {"declared": ("(b, 4)",)}, "axis 1 of the input has size 3, not 4"),
        ((None, 3), {"declared": ("(b +, 3)",)}, "cannot be"),
        ((None, 3), {"declared": ("(b, 3)",), "constraints": ("b > 2",)}, "cannot be"),
        ((None, 3), {"declared": ("(b, 3)",), "constraints": ("t >= 2",)}, r"names 't'.*shapes \(b, 3\)"),
        ((None, 3), {"constraints": ("size_2 >= 2",)}, r"names 'size_2'.*shapes \(batch, 3\)"),
        (
            (None, None),
            {"declared": ("(a, b)",), "constraints": ("a == b", "b == a + 1")},
            "cannot be used.*nsatisfiable",
        ),
    ],
)
def test_declarations_that_do_not_fit(shape, options, text):
    with pytest.raises(ShapeError, match=text):
        signature(shape, **options)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([(2, 7)], r"Axis 1 of input 0 has size 7.*'4\*k'"),
        ([(2,)], "rank 1.*rank 2"),
        ([(2, 4)], "constraint 'k >= 2' does not hold for k = 1"),
    ],
)
def test_check_says_what_differs(sizes, text):
    declared = signature((None, None), declared=("(b, 4*k)",), constraints=("k >= 2",))
    declared.check([(2, 8)])
    with pytest.raises(ShapeError, match=text):
        declared.check(sizes)


@pytest.mark.parametrize(
    ("shapes", "sizes", "agrees"),
    [
        ([(None, 3)], [(7, 3)], True),
        ([(None, 3)], [(None, 3)], True),
        ([(None, 3)], [(7, 4)], False),
        ([(None, 3)], [(7, None)], False),
        ([(None, 3)], [(7, 3, 1)], False),
        ([(None, 3), (None, 3)], [(7, 3), (7, 3)], True),
        ([(None, 3), (None, 3)], [(7, 3), (8, 3)], False),
        ([(None, 3)], [(7, 3), (7, 3)], False),
    ],
    ids=str,
)
def test_agrees(shapes, sizes, agrees):
    assert signature(*shapes).agrees(sizes) is agrees


def test_one_symbol_for_all():
    merged = signature((None, None, 3)).with_one_symbol()
    assert len(merged.symbols()) == 1 and merged.constraints == (f"{merged.symbols()[0]} >= 2",)
    assert signature((None, 3)).with_one_symbol() is None


def test_trials_keep_the_constraints():
    trials = list(signature((None, None), declared=("(b, 4*k)",), constraints=("k >= 3", "b <= 8")).trials())
    assert [trial.shapes[0] for trial in trials] == ["(4, 16)", "(8, 32)"]


@pytest.mark.parametrize(
    ("shape", "constraints", "first"),
    [("(a, b)", ("a == 2*b",), "(4, 2)"), ("(a, b)", ("a >= 3*b",), "(4, 1)"), ("(a - 2, a)", (), "(0, 2)")],
)
def test_trials_find_sizes_that_are_not_equal(shape, constraints, first):
    declared = signature((None, None), declared=(shape,), constraints=constraints)
    assert next(declared.trials()).shapes == (first,)


def test_constraints_that_no_size_fulfils_have_no_trials():
    assert list(signature((None,), declared=("(k,)",), constraints=("k >= 5", "k <= 3")).trials()) == []


@pytest.mark.parametrize(
    ("one", "two", "accepts"),
    [((None, 3), (5, 3), True), ((4, 3), (None, 3), True), ((4, 3), (5, 3), False), ((4,), (4, 1), False)],
)
def test_array_spec_accepts(one, two, accepts):
    assert ArraySpec(one, "float32").accepts(ArraySpec(two, "float32")) is accepts
