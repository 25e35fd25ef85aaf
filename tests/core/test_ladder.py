"""The ladder of ways to find a function's output shapes: which rung accepts which function."""

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


def test_the_error_names_the_sizes_and_keeps_the_cause():
    with pytest.raises(
        ShapeError, match=r"(?s)\(batch, size_1\).*'batch', 'size_1' are unknown.*polymorphic_shapes"
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
