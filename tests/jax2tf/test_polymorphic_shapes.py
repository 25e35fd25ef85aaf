"""Declared shapes: what they accept, and what they say when a size breaks them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from jaxbridge.errors import ShapeError, SignatureError


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def total(*trees: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(trees))


# polymorphic_shapes, constraints, arguments that fit
ACCEPTED = {
    "text_for_one": (["(b, t, 3)"], (), [zeros(2, 5, 3)]),
    "without_parentheses": (["b, t, 3"], (), [zeros(2, 5, 3)]),
    "ellipsis": (["b, ..."], (), [zeros(2, 5, 3)]),
    "only_ellipsis": (["..."], (), [zeros(2, 5, 3)]),
    "underscore": (["(b, _, 3)"], (), [zeros(2, 5, 3)]),
    "one_text_for_all": ("b, ...", (), [zeros(2, 5), {"a": zeros(2, 3, 1)}]),
    "none": (None, (), [zeros(2, 5)]),
    "none_for_one": ([None, "b, ..."], (), [zeros(2, 5), zeros(3, 1)]),
    "tuple_of_entries": (("b, ...", None), (), [zeros(2, 5), zeros(3, 1)]),
    "tree_of_texts": ([{"a": "b, ...", "c": ["t, 2", None]}], (), [{"a": zeros(2), "c": [zeros(3, 2), zeros(4)]}]),
    "prefix_tree": ([{"a": "b, ...", "c": "t, ..."}], (), [{"a": zeros(2), "c": [zeros(3, 2), zeros(3)]}]),
    "equal_names": (["b, 2", "b"], (), [zeros(4, 2), zeros(4)]),
    "multiple": (["4*k"], (), [zeros(8)]),
    "sum": (["b + 1", "b"], (), [zeros(4), zeros(3)]),
    "from_a_multiple": (["2*b", "b + 1"], (), [zeros(4), zeros(3)]),
    "lower_bound": (["k"], ("k >= 2",), [zeros(2)]),
    "upper_bound": (["k"], ("k <= 2",), [zeros(2)]),
    "equality": (["a", "b"], ("a == 2*b",), [zeros(4), zeros(2)]),
    "scalar": ([""], (), [np.float32(1)]),
}


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_accepted(name: str):
    shapes, constraints, args = ACCEPTED[name]
    args = jax.tree.map(lambda x: x + np.float32(1), args)
    converted = jax2tf.convert(total, polymorphic_shapes=shapes, polymorphic_constraints=constraints)
    np.testing.assert_allclose(converted(*args), total(*args))


# polymorphic_shapes, constraints, arguments that do not fit, what is said
BROKEN = {
    "equal_names": (
        ["b, 2", "b"],
        (),
        [zeros(4, 2), zeros(3)],
        r"Axis 0 of input 1 has size 3.*\(b,\) needs 'b' \(4\)",
    ),
    "multiple": (["4*k"], (), [zeros(6)], r"Axis 0 of input 0 has size 6.*needs '4\*k' \(4\)"),
    "lower_bound": (["k"], ("k >= 2",), [zeros(1)], "The constraint 'k >= 2' does not hold for k = 1"),
    "upper_bound": (["k"], ("k <= 2",), [zeros(3)], "The constraint 'k <= 2' does not hold for k = 3"),
    "equality": (
        ["a", "b"],
        ("a == 2*b",),
        [zeros(4), zeros(3)],
        r"The constraint 'a == 2\*b' does not hold for a = 4",
    ),
    "number": (["b, 3"], (), [zeros(2, 4)], r"axis 1 of the input has size 4, not 3"),
    "rank": (["b, 3"], (), [zeros(2, 4, 1)], r"of rank 2, for an input of shape \(2, 4, 1\), of rank 3"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_by_static_sizes(name: str):
    shapes, constraints, args, message = BROKEN[name]
    with pytest.raises(ShapeError, match=message):
        jax2tf.convert(total, polymorphic_shapes=shapes, polymorphic_constraints=constraints)(*args)


def graph(name: str, **options: Any) -> tuple[Any, list[Any], str]:
    shapes, constraints, args, message = BROKEN[name]
    converted = jax2tf.convert(total, polymorphic_shapes=shapes, polymorphic_constraints=constraints)
    specs = [tf.TensorSpec([None] * arg.ndim) for arg in args]
    return tf.function(converted, input_signature=specs, autograph=False, **options), args, message


@pytest.mark.parametrize("name", ["equal_names", "multiple", "lower_bound", "upper_bound", "equality"])
def test_broken_in_a_graph_of_unknown_sizes(name: str):
    function, args, message = graph(name)
    said = message.split(" does not")[0].split(" has size")[0]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(*args)
    # TensorFlow prints the sentence with its quotes escaped.
    assert said.replace("\\*", "*") in str(caught.value).replace("\\'", "'")


@pytest.mark.xfail(strict=True, reason="XLA drops assertions, so `jit_compile` cannot check a constraint")
def test_broken_in_a_jitted_graph_known_difference():
    function, args, _ = graph("lower_bound", jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(*args)


@pytest.mark.parametrize("name", ["equal_names", "lower_bound", "equality"])
def test_kept_in_a_graph_of_unknown_sizes(name: str):
    shapes, constraints, args = ACCEPTED[name]
    converted = jax2tf.convert(total, polymorphic_shapes=shapes, polymorphic_constraints=constraints)
    specs = [tf.TensorSpec([None] * arg.ndim) for arg in args]
    assert tf.function(converted, input_signature=specs, autograph=False)(*args) == 0


UNREADABLE = {
    "text": (["b +, 3"], (), "cannot be"),
    "parenthesis": (["(b, 3"], (), "rank 1"),
    "constraint": (["b, 3"], ("b > 2",), "'==' or '>=' or '<='"),
    "symbol_of_no_size": (["b, 3"], ("c >= 2",), "names 'c', and the inputs have the shapes"),
    "not_linear": (["b*c, 3"], (), "symbol '.' does not follow from the shapes"),
    "too_many": (["b, 3", None], (), "per positional argument"),
    "too_few": ([], (), "per positional argument"),
    "wrong_tree": ([{"a": "b, 3"}], (), "per positional argument"),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_unreadable(name: str):
    shapes, constraints, message = UNREADABLE[name]
    with pytest.raises(ShapeError, match=message):
        jax2tf.convert(total, polymorphic_shapes=shapes, polymorphic_constraints=constraints)(zeros(2, 3))


def test_unreadable_type():
    with pytest.raises(SignatureError, match="`polymorphic_shapes` must be None, a shape text"):
        jax2tf.convert(total, polymorphic_shapes=[3])


def test_unknown_rank():
    function = tf.function(jax2tf.convert(jnp.sin), input_signature=[tf.TensorSpec(None)], autograph=False)
    with pytest.raises(ShapeError, match=r"unknown rank.*tf.ensure_shape"):
        function.get_concrete_function()


def test_unknown_sizes_without_a_text_are_symbols():
    function = tf.function(jax2tf.convert(jnp.sin), input_signature=[tf.TensorSpec((None, None))], autograph=False)
    assert function(zeros(2, 3)).shape == (2, 3)
    assert function(zeros(0, 1)).shape == (0, 1)
