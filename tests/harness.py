"""What the tests ask of a layer on either backend, answered in numpy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from tests.cases import Args, Case, draw_key

BACKEND = keras.config.backend()

#: The same float32 operations, compiled in another way: sums are made in another order.
RTOL, ATOL = 2e-5, 2e-6


def numbers(tree: Any) -> Any:
    """Returns a pytree of tensors or variables as one of numpy arrays."""
    return jax.tree.map(lambda leaf: np.array(keras.ops.convert_to_numpy(leaf)), tree)


def first_difference(got: Any, want: Any, rtol: float = RTOL, atol: float = ATOL) -> str | None:
    """Says which leaf differs first, and by how much; None where all agree in structure, shape, dtype and value."""
    got_leaves, got_tree = jax.tree_util.tree_flatten_with_path(got)
    want_leaves, want_tree = jax.tree_util.tree_flatten_with_path(want)
    if got_tree != want_tree:
        return f"structures differ: {got_tree} and {want_tree}"
    for (path, a), (_, b) in zip(got_leaves, want_leaves, strict=True):
        name = jax.tree_util.keystr(path) or "the value"
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {a.dtype}{a.shape} and should be {b.dtype}{b.shape}"
        same = np.isclose(a, b, rtol, atol) if np.issubdtype(b.dtype, np.inexact) else a == b
        if not np.all(same):
            where = tuple(np.argwhere(~np.atleast_1d(same))[0])
            return f"{name} is {np.atleast_1d(a)[where]} at {where} and should be {np.atleast_1d(b)[where]}"
    return None


def assert_same(got: Any, want: Any, rtol: float = RTOL, atol: float = ATOL) -> None:
    difference = first_difference(got, want, rtol, atol)
    assert difference is None, difference


def tensors(args: Any) -> Any:
    """Returns numpy inputs as tensors of the backend."""
    return jax.tree.map(keras.ops.convert_to_tensor, args)


def built(case: Case, batch: int = 2, **kwargs: Any) -> Any:
    """Returns a new layer that has been called once, in inference mode (nothing drawn, no state changed)."""
    layer = case.layer(**kwargs)
    layer(*case.args(batch, 8))
    return layer


@functools.cache
def shared(case: Case) -> Any:
    """Returns a built layer for tests that only look at it."""
    return built(case)


def values_of(layer: Any) -> tuple[Any, Any]:
    """Returns params and state as pytrees of numpy arrays."""
    return numbers(layer.params), numbers(layer.state)


def reference_loop(case: Case, layer: Any, batches: list[Args]) -> tuple[list[Any], Any]:
    """Returns outputs and last state of training calls on the layer's variables, without the layer."""
    params, state = values_of(layer)
    outputs = []
    for n, args in enumerate(batches):
        out, state = case.reference(params, state, draw_key(n) if case.draws else None, args, True)
        outputs.append(numbers(out))
    return outputs, numbers(state)


def scalar(outputs: Any, xp: Any) -> Any:
    """Returns a scalar that depends on every element of the floating outputs in its own way."""
    total = 0.0
    for leaf in jax.tree.leaves(outputs):
        size = int(np.prod(leaf.shape))
        total = total + xp.sum(leaf * np.sin(np.arange(size) + 1).reshape(leaf.shape).astype("float32"))
    return total


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(np.asarray(leaf).dtype, jnp.floating)


def split_floats(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Returns the floating leaves, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    flags = [is_float(leaf) for leaf in leaves]

    def join(given):
        given = iter(given)
        return jax.tree.unflatten(
            treedef, [next(given) if flag else leaf for flag, leaf in zip(flags, leaves, strict=True)]
        )

    return [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag], join


def layer_gradients(layer: Any, args: Args, training: bool, jit: bool = True) -> tuple[list[Any], list[Any]]:
    """Returns the gradients of `scalar(outputs)` for the trainable variables and for the floating inputs.

    `jit`: on JAX, whether the whole of it is compiled as one; on TensorFlow the tape is outside any function.
    """
    given, join = split_floats(args)
    if BACKEND == "jax":
        fixed = [v.value for v in layer.non_trainable_variables]

        def loss(trainable, given):
            return scalar(layer.stateless_call(trainable, fixed, *join(given), training=training)[0], jnp)

        gradient = jax.grad(loss, (0, 1))
        found = (jax.jit(gradient) if jit else gradient)([v.value for v in layer.trainable_variables], given)
        return numbers(found)
    import tensorflow as tf

    given = [tf.constant(array) for array in given]
    weights = [v.value for v in layer.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = scalar(layer(*join(given), training=training), keras.ops)
    found = tape.gradient(loss, (weights, given), unconnected_gradients="zero")
    return numbers([tf.convert_to_tensor(g) for g in found[0]]), numbers(found[1])


def reference_gradients(case: Case, layer: Any, args: Args, key: Any, training: bool) -> tuple[list[Any], list[Any]]:
    """Returns the same of `jax.grad` of the reference."""
    params, state = values_of(layer)
    trained, join_params = split_floats(params)
    given, join_args = split_floats(args)

    def loss(trained, given):
        return scalar(case.reference(join_params(trained), state, key, join_args(given), training)[0], jnp)

    return numbers(jax.jit(jax.grad(loss, (0, 1)))(trained, given))


def compiled(layer: Any, training: bool) -> Callable[..., Any]:
    """Returns `f(*args)` that calls the layer inside a compiled function of the user's, and keeps its state."""
    if BACKEND == "jax":

        @jax.jit
        def step(trainable, rest, args):
            return layer.stateless_call(trainable, rest, *args, training=training)

        def call(*args):
            outputs, rest = step(
                [v.value for v in layer.trainable_variables], [v.value for v in layer.non_trainable_variables], args
            )
            for variable, value in zip(layer.non_trainable_variables, rest, strict=True):
                variable.assign(value)
            return outputs

        return call
    import tensorflow as tf

    return tf.function(lambda *args: layer(*args, training=training))


@contextlib.contextmanager
def run_eagerly():
    """Returns a context in which TensorFlow runs functions eagerly, and JAX without compilation."""
    if BACKEND == "jax":
        with jax.disable_jit():
            yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def fit(
    model: keras.Model, x: Any, epochs: int = 1, batch_size: int = 4, learning_rate: float = 0.1, **options: Any
) -> None:
    """Fits the model to zeros with a fixed learning rate, in the order of the rows."""
    rows = jax.tree.leaves(x)[0].shape[0]
    outputs = model(jax.tree.map(lambda leaf: keras.KerasTensor(leaf.shape, leaf.dtype.name), x))
    y = jax.tree.map(lambda output: np.zeros((rows, *output.shape[1:]), "float32"), outputs)
    losses = jax.tree.map(lambda _: "mse", y)
    model.compile(keras.optimizers.SGD(learning_rate), losses, **options)
    model.fit(x, y, epochs=epochs, batch_size=batch_size, shuffle=False, verbose=0)
