"""Maxima and minima are NaN where an operand is, in TensorFlow as in numpy: whatever JAX makes them of, live and served."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jaxbridge import jax2tf
from jaxbridge.errors import SignatureError
from tests.jax2tf.helpers import run_python

NAN, INF = np.nan, np.inf
X = np.array(
    [
        [NAN, 1, -2, 3, 0.5, -1],
        [1, 4, NAN, -3, 2, 0.25],
        [-1, 3, 2, 5, -4, NAN],
        [INF, 1, -INF, NAN, 2, 3],
        [-0.0, 0.0, INF, -INF, 1, -1],
        [3, -1, 2, 0.5, -2, 1],
    ]
)
Y = np.roll(X[::-1], 1, axis=1)
SEGMENTS = np.array([0, 0, 1, 2, 2, 2], "int32")


def reduced(reducer, start):
    """A reduction with a reducer of the user's own, which JAX lowers as it is written."""
    return lambda x, _: lax.reduce(x, x.dtype.type(start), reducer, (1,))


def windows(reducer, start):
    return lambda x, _: lax.reduce_window(x, x.dtype.type(start), reducer, (1, 2), (1, 1), "VALID")


def numpy_segments(ufunc, start):
    def segments(x, _):
        result = np.full((3, 6), start)
        ufunc.at(result, SEGMENTS, x)
        return result

    return segments


#: Name -> the function in JAX and in numpy.
CASES: dict[str, tuple[Any, Any]] = {
    "max": (lambda x, y: jnp.max(x, 1), lambda x, y: x.max(1)),
    "min": (lambda x, y: jnp.min(x, 1), lambda x, y: x.min(1)),
    "max of all": (lambda x, y: jnp.max(x), lambda x, y: x.max()),
    "max with a start": (lambda x, y: jnp.max(x, 1, initial=0), lambda x, y: x.max(1, initial=0)),
    "maximum": (jnp.maximum, np.maximum),
    "minimum": (jnp.minimum, np.minimum),
    "maximum with a row": (lambda x, y: jnp.maximum(x, y[:1]), lambda x, y: np.maximum(x, y[:1])),
    "cummax": (lambda x, y: lax.cummax(x, 1), lambda x, y: np.maximum.accumulate(x, 1)),
    "cummin": (lambda x, y: lax.cummin(x, 1), lambda x, y: np.minimum.accumulate(x, 1)),
    "max pool": (windows(lax.max, -INF), lambda x, y: np.maximum(x[:, :-1], x[:, 1:])),
    "min pool": (windows(lax.min, INF), lambda x, y: np.minimum(x[:, :-1], x[:, 1:])),
    "own reducer": (reduced(lambda a, b: lax.max(b, a), -INF), lambda x, y: x.max(1)),
    "own window": (windows(lambda a, b: lax.min(b, a), INF), lambda x, y: np.minimum(x[:, :-1], x[:, 1:])),
    "at max": (
        lambda x, y: jnp.full((3, 6), -INF, x.dtype).at[SEGMENTS].max(x),
        numpy_segments(np.maximum, -INF),
    ),
    "at min": (lambda x, y: jnp.full((3, 6), INF, x.dtype).at[SEGMENTS].min(x), numpy_segments(np.minimum, INF)),
    "segment_max": (lambda x, y: jax.ops.segment_max(x, SEGMENTS, 3), numpy_segments(np.maximum, -INF)),
    "segment_min": (lambda x, y: jax.ops.segment_min(x, SEGMENTS, 3), numpy_segments(np.minimum, INF)),
    "ptp": (lambda x, y: jnp.ptp(x, 1), lambda x, y: np.ptp(x, 1)),
    "norm of inf": (lambda x, y: jnp.linalg.norm(x, INF, 1), lambda x, y: np.linalg.norm(x, INF, 1)),
    "clamp between arrays": (
        lambda x, y: lax.clamp(y, x, y + 1),
        lambda x, y: np.minimum(np.maximum(x, y), y + 1),
    ),
    "clamp between numbers": (lambda x, y: lax.clamp(x.dtype.type(-1), x, x.dtype.type(2)), lambda x, y: x.clip(-1, 2)),
    "clamp by a scalar": (
        lambda x, y: lax.clamp(y[0, 0], x, x.dtype.type(9)),
        lambda x, y: np.minimum(np.maximum(x, y[0, 0]), 9),
    ),
    "clip": (lambda x, y: jnp.clip(x, -1, 2), lambda x, y: x.clip(-1, 2)),
    "relu": (lambda x, y: jax.nn.relu(x), lambda x, y: np.maximum(x, 0)),
    "relu from the left": (lambda x, y: jnp.maximum(0, x), lambda x, y: np.maximum(x, 0)),
    "scan": (
        lambda x, y: lax.scan(lambda m, row: (jnp.maximum(m, row),) * 2, x[0], x)[1],
        lambda x, y: np.maximum.accumulate(x, 0),
    ),
    "vmap": (jax.vmap(lambda x, y: jnp.max(jnp.minimum(x, y))), lambda x, y: np.minimum(x, y).max(1)),
    "nanmax": (lambda x, y: jnp.nanmax(x, 1), lambda x, y: np.nanmax(x, 1)),
    "argmax": (lambda x, y: jnp.argmax(x, 1).astype(x.dtype), lambda x, y: np.argmax(x, 1)),
    "sort": (lambda x, y: jnp.sort(x, 1), lambda x, y: np.sort(x, 1)),
}

#: Gradients for the sum of the results: each share of a maximum goes to the operands that are equal to it, which NaN is
#: not. JAX on its own is the oracle: at these sizes its compiler keeps NaN.
GRADIENTS = (
    "max",
    "maximum",
    "minimum",
    "max pool",
    "min pool",
    "clip",
    "relu",
    "ptp",
    "cummax",
    "segment_max",
    "vmap",
)

#: dtype -> how it runs beside being served: the ways differ in what compiles, whatever the dtype.
DTYPES = {
    "float32": ("eager", "function", "compiled"),
    "float64": ("function",),
    "bfloat16": ("function",),
    "float16": ("function",),
}


def all_of(dtype: str) -> Any:
    """Returns the function of all cases and gradients in a dtype; as wide floats, which files and numpy hold."""

    def run(x, y):
        x, y = x.astype(dtype), y.astype(dtype)
        found = {name: fn(x, y) for name, (fn, _) in CASES.items()}
        for name in GRADIENTS:
            gradient = jax.grad(lambda x, fn=CASES[name][0]: fn(x, y).sum())
            found[f"gradient of {name}"] = gradient(x)
        return {name: value.astype(jnp.float64 if dtype == "float64" else jnp.float32) for name, value in found.items()}

    return run


def inputs(dtype: str) -> list[np.ndarray]:
    return [array.astype("float64" if dtype == "float64" else "float32") for array in (X, Y)]


def specs(dtype: str) -> list[tf.TensorSpec]:
    return [tf.TensorSpec((6, 6), array.dtype) for array in inputs(dtype)]


@functools.cache
def found(dtype: str, way: str) -> dict[str, np.ndarray]:
    """Returns the results of all cases, computed in one way."""
    with jax.enable_x64(dtype == "float64"):
        if way == "jax":
            return jax.tree.map(np.asarray, jax.jit(all_of(dtype))(*inputs(dtype)))
        converted = jax2tf.convert(all_of(dtype))
        if way != "eager":
            converted = tf.function(converted, autograph=False, jit_compile=way == "compiled" or None)
        return {name: value.numpy() for name, value in converted(*map(tf.constant, inputs(dtype))).items()}


SERVE = """
    import json, sys, numpy as np, tensorflow as tf
    folder, dtypes = sys.argv[1], sys.argv[2:]
    for dtype in dtypes:
        given = np.load(f"{folder}/{dtype}.npz")
        module = tf.saved_model.load(f"{folder}/{dtype}")
        outs = module.f(tf.constant(given["x"]), tf.constant(given["y"]))
        np.savez(f"{folder}/{dtype}-out.npz", **{name: value.numpy() for name, value in outs.items()})
    print(json.dumps(sorted(module for module in sys.modules if module.startswith("jax"))))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """dtype -> results of all cases in a process without JAX."""
    folder = tmp_path_factory.mktemp("nan")
    for dtype in DTYPES:
        module = tf.Module()
        with jax.enable_x64(dtype == "float64"):
            converted = jax2tf.convert(all_of(dtype), with_gradient=False)
            module.f = tf.function(converted, input_signature=specs(dtype), autograph=False)
            tf.saved_model.save(module, str(folder / dtype))
        np.savez(folder / f"{dtype}.npz", **dict(zip("xy", inputs(dtype), strict=True)))
    assert json.loads(run_python(SERVE, folder, *DTYPES, without=("jax", "jaxlib"))) == []
    return {dtype: np.load(folder / f"{dtype}-out.npz") for dtype in DTYPES}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(name: str, dtype: str, served: dict[str, Any]):
    with np.errstate(invalid="ignore"):
        want = np.asarray(CASES[name][1](X, Y), "float64")
    for way in DTYPES[dtype]:
        np.testing.assert_array_equal(found(dtype, way)[name], want, err_msg=way)
    np.testing.assert_array_equal(served[dtype][name], want, err_msg="served")


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(name: str, dtype: str, served: dict[str, Any]):
    name = f"gradient of {name}"
    want = found(dtype, "jax")[name]
    for way in DTYPES[dtype]:
        np.testing.assert_array_equal(found(dtype, way)[name], want, err_msg=way)
    np.testing.assert_array_equal(served[dtype][name], want, err_msg="served")


def test_gradients_of_tensorflow_see_what_jax_sees():
    """The tape's forward and backward pass are two modules, each of which keeps NaN."""
    x = tf.constant(X, "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = jax2tf.convert(lambda x: jnp.max(jnp.maximum(x, x[::-1]) * x, 1))(x)
    want, vjp = jax.vjp(lambda x: jnp.max(jnp.maximum(x, x[::-1]) * x, 1), jnp.float32(X))
    np.testing.assert_array_equal(value, want)
    np.testing.assert_array_equal(tape.gradient(value, x), vjp(jnp.ones(6, "float32"))[0])


@pytest.mark.parametrize("size", [100, 4096, 50_000])
def test_long_reductions(size: int):
    x = np.random.default_rng(0).normal(size=(4, size)).astype("float32")
    x[0, 0] = x[1, size // 2] = x[2, -1] = NAN
    got = tf.function(jax2tf.convert(lambda x: (jnp.max(x, -1), jnp.min(x, -1), jnp.max(x))), autograph=False)(x)
    for one, want in zip(got, (x.max(-1), x.min(-1), x.max()), strict=True):
        np.testing.assert_array_equal(one, want)


@pytest.mark.xfail(strict=True, reason="JAX's CPU compiler drops NaN in reductions over 4096 elements of the last axis")
def test_long_reductions_in_jax():
    x = np.zeros((2, 4096), "float32")
    x[0, 5] = x[1, -1] = NAN
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.max(x, -1))(x), x.max(-1))


@pytest.mark.parametrize("fn", [jax.nn.relu, lambda x: jnp.clip(x, -1, 1), lambda x: jnp.maximum(0, x)])
@pytest.mark.parametrize("shape", [None, "(b, c)"])
def test_a_bound_that_is_a_number_costs_nothing(fn: Any, shape: str | None):
    """relu and clip are the plain operations, also inside the functions that JAX makes of them."""
    text = compiled_text(fn, shape)
    assert "maximum(" in text or "minimum(" in text
    assert "compare(" not in text


def test_fast_is_what_tensorflow_has():
    text = compiled_text(lambda x: jnp.max(jnp.minimum(x, x[::-1]), 1), None, nan="fast")
    assert "maximum(" in text
    assert "minimum(" in text
    assert "compare(" not in text


def test_another_word_is_refused():
    with pytest.raises(SignatureError, match=r"`nan` must be one of 'keep', 'fast'; got 'exact'"):
        jax2tf.convert(jnp.max, nan="exact")


def compiled_text(fn: Any, shape: str | None, **options: Any) -> str:
    converted = jax2tf.convert(fn, polymorphic_shapes=shape and [shape], **options)
    compiled = tf.function(converted, autograph=False, jit_compile=True)
    return compiled.experimental_get_compiler_ir(tf.ones((3, 4)))(stage="hlo")
