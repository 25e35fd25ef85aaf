"""The ladder of ways to find a function's output shapes: which rung accepts which function."""

import re
import traceback

import jax
import jax.numpy as jnp
import pytest

from jaxbridge.core.ladder import infer_outputs
from jaxbridge.core.shapes import ArraySpec, make_signature
from jaxbridge.errors import ShapeError


def infer(fn, shape, concrete_shapes, **options):
    signature = make_signature((shape,), ("float32",), **options)
    return infer_outputs(lambda structs: jax.eval_shape(fn, *structs), signature, concrete_shapes=concrete_shapes)


def if_long(x):
    return x[:, :5] if x.shape[1] > 5 else x


def int_size(x):
    return jnp.reshape(x, (int(x.shape[0]), -1))


def square(x):
    return x + jnp.swapaxes(x, 0, 1)


@pytest.mark.parametrize("concrete_shapes", [True, False])
@pytest.mark.parametrize(
    ("fn", "shape", "want"),
    [
        (jnp.tanh, (4, 3), (4, 3)),
        (jnp.tanh, (None, 3), (None, 3)),
        (lambda x: x.sum(0), (None, 3), (3,)),
        (lambda x: jnp.concatenate([x, x], 1), (None, None), (None, None)),
        (square, (None, None), (None, None)),
    ],
)
def test_symbols_are_enough(fn, shape, want, concrete_shapes):
    assert infer(fn, shape, concrete_shapes) == ArraySpec(want, "float32")


@pytest.mark.parametrize(("fn", "want"), [(if_long, (None, 5)), (int_size, (None, None))], ids=["comparison", "int"])
def test_probes_answer_where_sizes_are_always_known(fn, want):
    assert infer(fn, (None, None), True) == ArraySpec(want, "float32")


@pytest.mark.parametrize("fn", [if_long, int_size])
def test_no_probes_where_they_are_not(fn):
    with pytest.raises(ShapeError, match="compute_output_shape_fn"):
        infer(fn, (None, None), False)


def table(x):
    return x + jnp.zeros((64, 1))[: x.shape[1]]


def pairs(x):
    return x.reshape(x.shape[0], -1, 2)


@pytest.mark.parametrize(
    ("fn", "shape", "options", "text"),
    [
        (if_long, (None, None), {}, r"polymorphic_constraints=\('size_1 >= 6',\)"),
        (if_long, (None, None, 3), {"declared": ("(b, t, 3)",)}, r"polymorphic_constraints=\('t >= 6',\)"),
        (table, (None, None, 1), {}, r"polymorphic_constraints=\('size_1 <= 64',\)"),
        (
            table,
            (None, None, 1),
            {"declared": ("(b, t, 1)",), "constraints": ("t >= 2",)},
            r"polymorphic_constraints=\('t >= 2', 't <= 64'\)",
        ),
        (pairs, (None, None), {}, r"polymorphic_shapes='\(batch, 2\*size_1\)'"),
        (int_size, (None, None, 3), {}, r"polymorphic_shapes='\(batch, size_1, 3\)'"),
    ],
)
def test_the_error_says_what_helps(fn, shape, options, text):
    """With the names that it prints, and in the rank that the input has."""
    with pytest.raises(ShapeError, match=text) as caught:
        infer(fn, shape, False, **options)
    found = re.search(r"It can for (.*)\. Or", str(caught.value))
    if found:
        written = eval(f"dict({found[1].replace('`', '')})")
        declared = (written["polymorphic_shapes"],) if "polymorphic_shapes" in written else options.get("declared")
        constraints = written.get("polymorphic_constraints", options.get("constraints", ()))
        infer(fn, shape, False, declared=declared, constraints=constraints)


class OwnError(Exception):
    pass


def raises_its_own(x):
    if x.ndim == 2:
        raise OwnError("this is not about sizes")
    return x


@pytest.mark.parametrize("concrete_shapes", [True, False])
@pytest.mark.parametrize("fn", [raises_its_own, lambda x: x.no_such_method(), lambda x: x @ jnp.zeros((7, 2))])
def test_an_error_that_sizes_do_not_mend_is_the_functions_own(fn, concrete_shapes):
    with pytest.raises((OwnError, AttributeError, TypeError)) as caught:
        infer(fn, (None, 3), concrete_shapes)
    lines = [frame.f_code for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert fn.__code__ in lines


def test_the_error_names_the_sizes_and_keeps_the_cause():
    with pytest.raises(
        ShapeError, match=r"(?s)\(batch, size_1\).*'batch', 'size_1' are unknown.*polymorphic_constraints"
    ) as caught:
        infer(if_long, (None, None), False)
    assert caught.value.__cause__ is not None


def test_a_mistake_at_known_sizes_is_raised_as_it_is():
    with pytest.raises((TypeError, ValueError), match="ncompatible shapes") as caught:
        infer(lambda x: x + jnp.zeros(7), (2, 3), True)
    assert not isinstance(caught.value, ShapeError)


def test_a_constraint_decides_a_comparison():
    options = {"declared": ("(b, t)",), "constraints": ("t >= 6",)}
    assert infer(if_long, (None, None), False, **options) == ArraySpec((None, 5), "float32")


def test_structures_and_dtypes():
    found = infer(lambda x: {"i": jnp.argmax(x, 1), "b": [x > 0]}, (None, 3), False)
    assert found == {"i": ArraySpec((None,), "int32"), "b": [ArraySpec((None, 3), "bool")]}


def test_a_rank_that_depends_on_a_size_is_refused():
    with pytest.raises(ShapeError):
        infer(lambda x: x[0] if int(x.shape[0]) % 2 else x.reshape(-1)[: int(x.shape[0]) % 3], (None, 3), False)


def test_constraints_that_no_size_fulfils_are_said():
    with pytest.raises(ShapeError, match="No sizes were found that fulfil the constraints k >= 500, k <= 300"):
        infer(int_size, (None, 3), False, declared=("(k, 3)",), constraints=("k >= 500", "k <= 300"))
