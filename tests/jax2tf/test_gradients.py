"""Gradients through a converted function are those of JAX, at any order and with the tape anywhere."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from tests.jax2tf.cases import GRADIENT, Case, arguments
from tests.jax2tf.helpers import GRADIENT_TOLERANCE, concrete, polymorphic


def jax_gradients(fn: Callable[..., Any], args: list[np.ndarray], order: int) -> list[np.ndarray]:
    """Gradients of order n: of the sum of the sines of those of order n - 1, all outputs at first."""
    floats = [i for i, arg in enumerate(args) if arg.dtype.kind == "f"]

    def value(n: int, *args: Any) -> Any:
        leaves = jax.tree.leaves(fn(*args)) if n == 0 else jax.grad(lambda *a: value(n - 1, *a), floats)(*args)
        return sum(jnp.sin(leaf).sum() for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))

    return [np.asarray(g) for g in jax.jit(jax.grad(lambda *a: value(order - 1, *a), floats))(*args)]


def tf_gradients(fn: Callable[..., Any], args: list[Any], order: int) -> list[Any]:
    """The same with tapes around `fn`."""
    floats = [arg for arg in args if arg.dtype.is_floating]

    def value(n: int) -> Any:
        leaves = tf.nest.flatten(fn(*args)) if n == 0 else gradients(n)
        return tf.add_n([tf.reduce_sum(tf.sin(leaf)) for leaf in leaves if leaf.dtype.is_floating])

    def gradients(n: int) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(floats)
            last = value(n - 1)
        return tape.gradient(last, floats, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return gradients(order)


def tape_around(converted: Any, case: Case, args: list[Any], order: int) -> list[Any]:
    return tf_gradients(converted, args, order)


def tape_inside_function(converted: Any, case: Case, args: list[Any], order: int, **options: Any) -> list[Any]:
    return concrete(lambda *a: tf_gradients(converted, a, order), case, known_batch=False, **options)(*args)


def tape_inside_jit(converted: Any, case: Case, args: list[Any], order: int) -> list[Any]:
    return tape_inside_function(converted, case, args, order, jit_compile=True)


def tape_around_function(converted: Any, case: Case, args: list[Any], order: int, **options: Any) -> list[Any]:
    return tf_gradients(concrete(converted, case, known_batch=False, **options), args, order)


def tape_around_jit(converted: Any, case: Case, args: list[Any], order: int) -> list[Any]:
    return tape_around_function(converted, case, args, order, jit_compile=True)


def tape_around_nested_functions(converted: Any, case: Case, args: list[Any], order: int) -> list[Any]:
    inner = concrete(converted, case, known_batch=False)
    return tf_gradients(tf.function(lambda *a: inner(*a), autograph=False), args, order)


def tapes_around_and_inside(converted: Any, case: Case, args: list[Any], order: int) -> list[Any]:
    """The first derivative inside of a function, the others around it."""
    first = concrete(lambda *a: tf_gradients(converted, a, 1), case, known_batch=False)
    return tf_gradients(first, args, order - 1)


def check(case: Case, way: Callable[..., list[Any]], order: int) -> None:
    args = arguments(case)
    converted = jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case))
    got = way(converted, case, [tf.constant(arg) for arg in args], order)
    want = jax_gradients(case.fn, args, order)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, **GRADIENT_TOLERANCE[order])


@pytest.mark.parametrize("way", [tape_around, tape_around_function])
@pytest.mark.parametrize("name", list(GRADIENT))
def test_first_order(name: str, way: Callable[..., Any]):
    check(GRADIENT[name], way, 1)


MORE_WAYS = [tape_inside_function, tape_inside_jit, tape_around_jit, tape_around_nested_functions]


@pytest.mark.parametrize("way", MORE_WAYS)
@pytest.mark.parametrize("name", ["mlp", "scan", "custom_vjp", "remat_dots", "integer_output"])
def test_first_order_wherever_the_tape_is(name: str, way: Callable[..., Any]):
    check(GRADIENT[name], way, 1)


@pytest.mark.parametrize("way", [tape_around, tape_around_function])
@pytest.mark.parametrize(
    "name", ["mlp", "scan", "cond", "remat_dots", "stop_gradient", "custom_jvp", "integer_output", "reshape"]
)
def test_second_order(name: str, way: Callable[..., Any]):
    check(GRADIENT[name], way, 2)


@pytest.mark.parametrize("way", [tape_inside_function, tape_inside_jit, tape_around_jit, tapes_around_and_inside])
def test_second_order_wherever_the_tape_is(way: Callable[..., Any]):
    check(GRADIENT["mlp"], way, 2)


@pytest.mark.parametrize("way", [tape_around, tape_inside_function, tape_around_function, tapes_around_and_inside])
def test_third_order(way: Callable[..., Any]):
    check(GRADIENT["mlp"], way, 3)


@pytest.mark.parametrize("name", ["mlp", "scan", "reshape", "sizes", "integer_input"])
@pytest.mark.parametrize("batch", [0, 1])
def test_batch_of_few_rows(name: str, batch: int):
    case = GRADIENT[name]
    args = arguments(case, batch)
    converted = concrete(jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case)), case, known_batch=False)
    got = tf_gradients(converted, [tf.constant(arg) for arg in args], 1)
    for one, other in zip(got, jax_gradients(case.fn, args, 1), strict=True):
        np.testing.assert_allclose(one, other, **GRADIENT_TOLERANCE[1])


def test_gradient_of_a_graph_without_a_tape():
    """`tf.gradients` finds the plain form, whose gradient recomputes."""
    converted = jax2tf.convert(jnp.sin)

    @tf.function(autograph=False)
    def gradient(x):
        return tf.gradients(tf.gradients(converted(x), x), x)

    np.testing.assert_allclose(gradient(tf.constant([0.5, 2.0]))[0], -np.sin([0.5, 2.0]), rtol=1e-5)


def test_graph_made_without_a_tape_and_then_called_under_one():
    function = tf.function(jax2tf.convert(jnp.sin), autograph=False)
    x = tf.constant([0.5, 2.0])
    function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    np.testing.assert_allclose(tape.gradient(y, x), np.cos([0.5, 2.0]), rtol=1e-5)


@pytest.mark.parametrize("wanted", [None, (False,), (True,)])
def test_form_that_a_function_under_an_outer_tape_is_told(wanted: tuple[bool] | None):
    """Without being told, the arguments of the function look unwatched: right, but the forward pass runs twice."""
    from jaxbridge.core.shapes import make_signature
    from jaxbridge.jax2tf.convert import Conversion
    from jaxbridge.jax2tf.lowering import LoweringOptions

    treedef = jax.tree.structure(((0,), {}))
    conversion = Conversion(jnp.tanh, treedef, make_signature(((2,),), ("float32",)), LoweringOptions())
    function = tf.function(lambda x: conversion([x], True, wanted), autograph=False)
    x = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    np.testing.assert_allclose(tape.gradient(y, x), 1 - np.tanh(A) ** 2, rtol=1e-4)
    assert ("residual" in vars(conversion.function)) == (wanted == (True,))


@pytest.mark.parametrize("name", ["mlp", "remat_dropout", "cond", "integer_input", "sizes", "two_floats"])
def test_a_tape_inside_watches_one_argument_and_a_tape_outside_all(name: str):
    """Gradients that the inner tape has no use for are computed apart; the outer one uses them."""
    case = GRADIENT[name] if name != "two_floats" else Case(lambda x, y: jnp.sin(x) * y, ("b,3", "b,3"))
    args = arguments(case)
    last = max(i for i, arg in enumerate(args) if arg.dtype.kind == "f")
    converted = jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case))

    def value(*values: Any) -> Any:
        return tf.reduce_sum(tf.sin(converted(*values)))

    def inside(*values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values[last])
            found = value(*values)
        return tape.gradient(found, values[last]), found

    function = concrete(inside, case, known_batch=False)
    floats = [tensor for tensor in map(tf.constant, args) if tensor.dtype.is_floating]
    given = iter(floats)
    tensors = [next(given) if arg.dtype.kind == "f" else tf.constant(arg) for arg in args]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        one, found = function(*tensors)
    want = jax_gradients(case.fn, args, 1)
    for got, expected in zip([one, *tape.gradient(found, floats)], [want[-1], *want], strict=True):
        np.testing.assert_allclose(got, expected, **GRADIENT_TOLERANCE[1])


@pytest.mark.parametrize("shape", ["(b, t)", "(b, 2*t)"])
@pytest.mark.parametrize("trace", [lambda fn: fn, lambda fn: tf.function(fn, autograph=False)], ids=["eager", "graph"])
def test_gradient_over_an_axis_of_which_nothing_is_left(shape: str, trace: Callable[..., Any]):
    converted = jax2tf.convert(lambda x: jnp.cos(x.mean(1)), polymorphic_shapes=[shape])
    x = tf.constant([[1.0, 2.0, 3.0, 4.0]])

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = converted(x)
        return tape.gradient(value, x)

    np.testing.assert_allclose(trace(gradient)(x), np.full((1, 4), -np.sin(2.5) / 4), rtol=1e-5)


def test_integers_alone_have_no_gradient():
    """As of native ops, also outside of a graph."""
    x = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(x)
        largest = jax2tf.convert(jnp.argmax)(x)
    assert tape.gradient(largest, x) is None


# What may be asked of a tape


def two_outputs(a, b):
    return {"sum": jnp.sin(a) + b, "product": a * jnp.cos(b), "same": b}


A, B = np.float32([0.3, -2.0]), np.float32([1.5, 0.1])


def test_with_respect_to_one_argument():
    converted, a, b = jax2tf.convert(two_outputs), tf.constant(A), tf.constant(B)
    with tf.GradientTape() as tape:
        tape.watch(b)
        y = converted(a, b)["product"]
    np.testing.assert_allclose(tape.gradient(y, b), -A * np.sin(B), rtol=1e-5)


@pytest.mark.parametrize("output", ["sum", "product", "same"])
def test_of_one_of_several_outputs(output: str):
    converted, a, b = jax2tf.convert(two_outputs), tf.constant(A), tf.constant(B)
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = converted(a, b)[output]
    want = jax.grad(lambda *args: two_outputs(*args)[output].sum(), (0, 1))(A, B)
    for one, other in zip(tape.gradient(y, [a, b]), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_with_respect_to_what_it_does_not_depend_on():
    converted, a, other = jax2tf.convert(jnp.sin), tf.constant(A), tf.constant(B)
    with tf.GradientTape() as tape:
        tape.watch([a, other])
        y = converted(a)
    assert tape.gradient(y, other) is None


def test_persistent_tape():
    converted, a, b = jax2tf.convert(two_outputs), tf.constant(A), tf.constant(B)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, b])
        outs = converted(a, b)
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(outs["sum"], a), np.cos(A), rtol=1e-5)
        np.testing.assert_allclose(tape.gradient(outs["product"], a), np.cos(B), rtol=1e-5)


def test_with_respect_to_a_variable_and_a_wider_dtype():
    """JAX narrows 64 bits; the gradient comes back in the variable's dtype."""
    variable = tf.Variable(A.astype(np.float64))
    with tf.GradientTape() as tape:
        y = jax2tf.convert(jnp.sin)(variable)
    gradient = tape.gradient(y, variable)
    assert gradient.dtype == tf.float64
    np.testing.assert_allclose(gradient, np.cos(A), rtol=1e-5)


def test_sparse_cotangents():
    """`tf.gather` sends `tf.IndexedSlices`."""
    converted, x = jax2tf.convert(jnp.sin), tf.Variable(np.float32([[0.1], [0.2], [0.3]]))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            y = tf.gather(converted(x), [0, 2])
        gradient = tape.gradient(y, x)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient)[:, 0], np.cos([0.1, np.pi / 2, 0.3]), atol=1e-6)
    np.testing.assert_allclose(outer.gradient(gradient, x)[:, 0], -np.sin([0.1, 0, 0.3]), atol=1e-6)


@pytest.mark.parametrize("use_pfor", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
def test_jacobian(use_pfor: bool, in_function: bool):
    """`pfor` has no rule for XlaCallModule and runs it in a loop of its own."""
    converted = jax2tf.convert(lambda x: jnp.tanh(x @ jnp.arange(6.0).reshape(2, 3)))
    x = tf.constant(A[None])

    def jacobian(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = converted(x)
        return tape.jacobian(y, x, experimental_use_pfor=use_pfor)

    got = (tf.function(jacobian, autograph=False) if in_function else jacobian)(x)
    want = jax.jacobian(lambda x: jnp.tanh(x @ jnp.arange(6.0).reshape(2, 3)))(A[None])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_hessian():
    converted, x = jax2tf.convert(lambda x: jnp.sin(x).prod()), tf.constant(A)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        gradient = tape.gradient(y, x)
    got = outer.jacobian(gradient, x, experimental_use_pfor=False)
    np.testing.assert_allclose(got, jax.hessian(lambda x: jnp.sin(x).prod())(A), rtol=1e-5)


@pytest.mark.xfail(strict=True, raises=LookupError, reason="XlaCallModule has no gradient to derive forward mode from")
def test_forward_mode_known_difference():
    x = tf.constant(A)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = jax2tf.convert(jnp.sin)(x)
    assert accumulator.jvp(y) is not None


# Complex values: TensorFlow's gradient is the conjugate of JAX's, and what counts is to compose with native ops.

COMPLEX = {
    "square": (lambda z: z * z * (1 + 2j), lambda z: z * z * (1 + 2j)),
    "conjugate": (lambda z: jnp.conj(z) * z + jnp.conj(z), lambda z: tf.math.conj(z) * z + tf.math.conj(z)),
    "exp": (jnp.exp, tf.exp),
    "abs": (jnp.abs, tf.abs),
    "real_imag": (lambda z: z.real * z.imag, lambda z: tf.math.real(z) * tf.math.imag(z)),
    "to_complex": (
        lambda z: jnp.exp(1j * z.real),
        lambda z: tf.exp(tf.complex(0.0 * tf.math.real(z), tf.math.real(z))),
    ),
    "fft": (lambda z: jnp.fft.fft(z) ** 2, lambda z: tf.signal.fft(z) ** 2),
}


def real_loss(out: Any) -> Any:
    return (
        tf.reduce_sum(tf.math.real(out) * 2.0 + tf.math.imag(out) ** 2)
        if out.dtype.is_complex
        else tf.reduce_sum(out**2)
    )


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "between_native_ops"])
@pytest.mark.parametrize("name", list(COMPLEX))
def test_complex(name: str, mixed: bool):
    jax_fn, native = COMPLEX[name]
    z = tf.constant(np.complex64([0.3 + 0.5j, -0.2 + 0.1j]))
    found = []
    for fn in (jax2tf.convert(jax_fn), native):
        with tf.GradientTape() as outer:
            outer.watch(z)
            with tf.GradientTape() as tape:
                tape.watch(z)
                y = fn(tf.sin(z) * (2 - 1j)) if mixed else fn(z)
                loss = real_loss(y * y if mixed else y)
            first = tape.gradient(loss, z)
            again = real_loss(first)
        found.append((first, outer.gradient(again, z)))
    for order, (got, want) in enumerate(zip(*found, strict=True), start=1):
        np.testing.assert_allclose(got, want, **GRADIENT_TOLERANCE[order])
