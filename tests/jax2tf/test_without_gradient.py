"""Functions without a gradient run everywhere, and say why when one is asked."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jaxbridge import jax2tf
from jaxbridge.errors import DifferentiationError

X = np.float32([[0.5, 2.0], [1.0, 1.0]])


@jax.custom_jvp
def bad_rule(x):
    return jnp.sin(x)


@bad_rule.defjvp
def _(primals, tangents):
    return jnp.sin(primals[0]), lax.while_loop(lambda t: t.sum() < 9, lambda t: t * 2, tangents[0])


def while_loop(x):
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, jnp.abs(x) + 1)


REVERSE = "JAX cannot differentiate this function in reverse mode"
FUNCTIONS = {
    "while_loop": (while_loop, {}, REVERSE),
    "fori_loop": (
        lambda x: lax.fori_loop(0, jnp.argmax(x), lambda i, c: c + i * jnp.sin(x), x),
        {},
        REVERSE,
    ),
    "custom_jvp": (bad_rule, {}, REVERSE),
    "with_gradient_false": (jnp.sin, {"with_gradient": False}, "converted with `with_gradient=False`"),
}
# The rule of a custom_jvp is only known to be bad when the gradient is asked, or the tape is there.
LAZY = [name for name in FUNCTIONS if name != "custom_jvp"]


def converted(name: str) -> tuple[Any, Any, str]:
    fn, options, message = FUNCTIONS[name]
    return jax2tf.convert(fn, polymorphic_shapes="b, ...", **options), fn, message


def gradient(function: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("under_tape", [False, True])
def test_runs(name: str, in_function: bool, under_tape: bool):
    """Also under a tape that nobody asks: TensorFlow then builds the gradient of a function beforehand."""
    function, fn, _ = converted(name)
    function = tf.function(function, autograph=False) if in_function else function
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        if under_tape:
            tape.watch(x)
        y = function(x)
    np.testing.assert_allclose(y, fn(X), rtol=1e-5)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_says_why_in_eager_mode(name: str):
    function, _, message = converted(name)
    with pytest.raises(DifferentiationError, match=message):
        gradient(function, tf.constant(X))


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_says_why_while_a_graph_is_traced(name: str):
    function, _, message = converted(name)
    with pytest.raises(LookupError, match=message):
        tf.function(lambda x: gradient(function, x), autograph=False)(tf.constant(X))


@pytest.mark.parametrize("name", LAZY)
def test_says_why_where_the_tape_is_around_the_graph(name: str):
    function, _, message = converted(name)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        gradient(tf.function(function, autograph=False), tf.constant(X))


@pytest.mark.parametrize("name", LAZY)
def test_never_returns_a_gradient_with_jit_compile(name: str):
    """XLA drops assertions; it names the op that it cannot compile instead."""
    function, _, _ = converted(name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="this_function_has_no_gradient"):
        gradient(tf.function(function, autograph=False, jit_compile=True), tf.constant(X))


def test_names_what_to_write_instead():
    with pytest.raises(DifferentiationError, match=r"lax.scan.*jax.custom_vjp.*with_gradient=False.*tf.stop_gradient"):
        gradient(jax2tf.convert(while_loop), tf.constant(X))


def test_stop_gradient_around_it():
    function = jax2tf.convert(while_loop)
    x = tf.constant(X)
    got = gradient(lambda x: x * tf.stop_gradient(function(x)), x)
    np.testing.assert_allclose(got, while_loop(X), rtol=1e-5)


def test_while_loop_on_integers_alone_does_not_matter():
    def fn(x):
        return jnp.sin(x) * lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0)

    np.testing.assert_allclose(
        gradient(jax2tf.convert(fn), tf.constant(X)), jax.grad(lambda x: fn(x).sum())(X), rtol=1e-5
    )


def test_while_loop_without_a_tape_is_not_differentiated():
    """No tracing of a derivative that nobody needs."""
    calls = []

    @jax.custom_vjp
    def fn(x):
        return jnp.sin(x)

    fn.defvjp(lambda x: (calls.append(1), (jnp.sin(x), x))[1], lambda x, ct: (ct,))
    jax2tf.convert(fn)(X)
    assert calls == []
