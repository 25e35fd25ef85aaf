"""How people write shapes in JAX functions, and what becomes of it where sizes are unknown: a table."""

import math
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import JaxLayer
from jaxbridge.core.programs import PROGRAMS
from jaxbridge.errors import ShapeError

BATCH, LENGTH, WIDTH = 2, 8, 4
TABLE = np.linspace(-1, 1, 512 * WIDTH, dtype="float32").reshape(512, WIDTH)


def flax(module):
    """A module with fixed params."""
    variables = module.init(jax.random.key(0), jnp.ones((BATCH, LENGTH, WIDTH)))
    return lambda x: module.apply(variables, x)


def summed_scan(x):
    return jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros((x.shape[0], WIDTH)), jnp.swapaxes(x, 0, 1))[0]


RECURRENCE = flax(nn.RNN(nn.LSTMCell(3)))

#: name -> (function of x with shape (b, t, 4), output shape where b and t are unknown)
SYMBOLIC = {
    "if x.shape[1] >= 1": (lambda x: x * 2 if x.shape[1] >= 1 else x, (None, None, 4)),
    "math.prod": (lambda x: x.reshape(math.prod(x.shape)), (None,)),
    "reshape(b, -1)": (lambda x: x.reshape(x.shape[0], -1), (None, None)),
    "divide by jnp.sqrt(t)": (lambda x: x / jnp.sqrt(x.shape[1]), (None, None, 4)),
    "divide by t": (lambda x: x / x.shape[1], (None, None, 4)),
    "causal mask": (lambda x: jnp.tril(jnp.ones((x.shape[1], x.shape[1])))[None] @ x, (None, None, 4)),
    "arange(t)": (lambda x: x + jnp.arange(x.shape[1])[None, :, None], (None, None, 4)),
    "convolution, stride 2, VALID": (flax(nn.Conv(3, (3,), strides=2, padding="VALID")), (None, None, 3)),
    "convolution, stride 2, SAME": (flax(nn.Conv(3, (3,), strides=2)), (None, None, 3)),
    "average pooling": (lambda x: nn.avg_pool(x, (2,), (2,)), (None, None, 4)),
    "concatenate over time": (lambda x: jnp.concatenate([x, x], 1), (None, None, 4)),
    "x[:, ::2]": (lambda x: x[:, ::2], (None, None, 4)),
    "x[:, :-1]": (lambda x: x[:, :-1], (None, None, 4)),
    "top_k": (lambda x: jax.lax.top_k(x, 2)[0], (None, None, 2)),
    "recurrence": (flax(nn.RNN(nn.LSTMCell(3))), (None, None, 3)),
    "vmap over the batch": (lambda x: jax.vmap(lambda row: row.sum(0))(x), (None, 4)),
    "scan over time": (summed_scan, (None, 4)),
    "map over the batch": (lambda x: jax.lax.map(lambda row: row.sum(), x), (None,)),
    "fori_loop to t": (lambda x: x * jax.lax.fori_loop(0, x.shape[1], lambda i, c: c + 1, 0), (None, None, 4)),
    "image.resize": (
        lambda x: jax.image.resize(x, (x.shape[0], x.shape[1] * 2, WIDTH), "nearest"),
        (None, None, 4),
    ),
    "random.normal(x.shape)": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (None, None, 4)),
    "squeeze": (lambda x: x.mean(1, keepdims=True).squeeze(1), (None, 4)),
}

#: Fail with symbols for sizes. On JAX their shapes are found by two runs at concrete sizes. On TensorFlow they are
#: converted for each input shape, with a warning; in a model with unknown sizes they need `polymorphic_shapes` or a hook.
CONCRETE = {
    "if x.shape[1] > 5": (lambda x: x * 2 if x.shape[1] > 5 else x, (None, None, 4)),
    "int(t)": (lambda x: x * int(x.shape[1]), (None, None, 4)),
    "range(t)": (lambda x: sum(x[:, i] for i in range(x.shape[1])), (None, 4)),
    "np.zeros(x.shape)": (lambda x: x + np.zeros(x.shape, "float32"), (None, None, 4)),
    "np.prod": (lambda x: x.reshape(int(np.prod(x.shape))), (None,)),
    "divide by np.sqrt(t)": (lambda x: x / np.sqrt(x.shape[1]), (None, None, 4)),
    "reshape(-1, 8)": (lambda x: x.reshape(-1, 8), (None, 8)),
    "table[:t]": (lambda x: x + jnp.asarray(TABLE)[: x.shape[1]], (None, None, 4)),
    "jnp.split over time": (lambda x: jnp.split(x, 2, axis=1)[0], (None, None, 4)),
    "dynamic_slice of a table": (
        lambda x: x + jax.lax.dynamic_slice(jnp.asarray(TABLE), (0, 0), (x.shape[1], WIDTH)),
        (None, None, 4),
    ),
}

#: Need a constraint to trace with symbols; the shape is found without, since one symbol for all is at least 2.
AT_LEAST_2 = {
    "recurrence over all but one": (lambda x: RECURRENCE(x[:, :-1]), (None, None, 3)),
    "jnp.linspace(t)": (lambda x: x + jnp.linspace(0, 1, x.shape[1])[None, :, None], (None, None, 4)),
}

#: Assume that two unknown sizes are equal: found with one symbol for both.
SQUARE = {"t against b": (lambda x: x[:, :, 0] + x[:, :, 0].T, (None, None))}

#: Take another branch for a symbol than for a number, silently: backends can differ. `assert_backends_agree` finds it.
SILENT = {
    "if x.shape[1] == 8": (lambda x: x * 2 if x.shape[1] == 8 else x, (None, None, 4)),
    "if x.shape[0] == x.shape[1]": (lambda x: x * 2 if x.shape[0] == x.shape[1] else x, (None, None, 4)),
}

TRACED_AT_CONCRETE_SIZES = keras.config.backend() == "jax"


def inputs(batch=BATCH):
    return np.random.default_rng(0).normal(size=(batch, LENGTH, WIDTH)).astype("float32")


def layer_for(fn, **options):
    layer = JaxLayer(lambda inputs: fn(inputs), name="net", **options)
    layer.build((None, None, WIDTH))
    return layer


def called(layer, x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = keras.ops.convert_to_numpy(layer(x))
    return outputs, [str(w.message) for w in caught if "unknown sizes" in str(w.message)]


def parameters(table):
    return pytest.mark.parametrize(("fn", "shape"), table.values(), ids=table.keys())


@parameters({**SYMBOLIC, **CONCRETE, **AT_LEAST_2})
def test_values_at_unknown_sizes(fn, shape):
    # float32 sums in another order
    np.testing.assert_allclose(called(layer_for(fn), inputs())[0], fn(inputs()), rtol=2e-5, atol=2e-6)


@parameters(SYMBOLIC)
def test_what_traces_with_symbols_never_warns(fn, shape):
    assert called(layer_for(fn), inputs())[1] == []


@parameters(AT_LEAST_2)
def test_what_needs_a_constraint_traces_with_it(fn, shape):
    options = {"polymorphic_shapes": "(b, t, 4)", "polymorphic_constraints": ("t >= 2",)}
    assert called(layer_for(fn, **options), inputs())[1] == []


@parameters(CONCRETE)
def test_what_does_not_is_converted_per_shape_with_one_warning_that_names_the_option(fn, shape):
    PROGRAMS.clear()  # equal layers share the function, and so the warning
    layer = layer_for(fn)
    warned = called(layer, inputs())[1] + called(layer, inputs(3 * BATCH))[1]
    if TRACED_AT_CONCRETE_SIZES:
        assert warned == []
    else:
        assert len(warned) == 1 and "polymorphic_shapes" in warned[0]


@parameters({**SYMBOLIC, **SQUARE, **AT_LEAST_2})
def test_output_shapes(fn, shape):
    assert layer_for(fn).compute_output_shape((None, None, WIDTH)) == shape


@parameters(CONCRETE)
def test_output_shapes_of_what_does_not_trace_with_symbols(fn, shape):
    layer = layer_for(fn)
    if TRACED_AT_CONCRETE_SIZES:
        assert layer.compute_output_shape((None, None, WIDTH)) == shape
    else:
        with pytest.raises(ShapeError, match=r"polymorphic_.*compute_output_shape_fn"):
            layer.compute_output_shape((None, None, WIDTH))


@parameters(SILENT)
def test_a_comparison_with_a_symbol_is_false(fn, shape):
    x = inputs(LENGTH)
    expected = fn(x) if TRACED_AT_CONCRETE_SIZES else x
    np.testing.assert_array_equal(called(layer_for(fn), x)[0], expected)
