"""Linear algebra in TensorFlow: values and gradients beside JAX's (LAPACK), live and served without JAX."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from jaxbridge.jax2tf import _jax_private
from jaxbridge.jax2tf.linear_algebra import tridiagonal_solve
from jaxbridge.jax2tf.lowering import LoweringOptions, lower
from tests.jax2tf.helpers import run_python
from tests.jax2tf.linear_algebra_cases import ROWS, difference, loss, matrices, spd

BATCH, OTHER_BATCH = 3, 2
SHAPE = "(b, 4, 4)"
#: XLA takes seconds to compile the loops of the others, live and served; they are slow tests.
QUICK = ("inv", "cholesky", "qr", "eigh", "triangular_solve", "tridiagonal_solve")

SERVE = """
    import sys, numpy as np, tensorflow as tf
    folder = sys.argv[1]
    module, returned, x = tf.saved_model.load(folder + "/saved"), {}, tf.constant(np.load(folder + "/x.npy"))
    for name in sys.argv[2:]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outs = tf.nest.flatten(getattr(module, name)(x))
            floats = [o for o in outs if o.dtype.is_floating]
            scalar = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in floats]) if floats else None
        for index, out in enumerate(outs):
            returned[f"{name}/{index}"] = out.numpy()
        if floats:
            returned[f"{name}/gradient"] = tape.gradient(scalar, x).numpy()
    assert not any(module.split(".")[0] in ("jax", "jaxlib", "jaxbridge") for module in sys.modules)
    np.savez(folder + "/outputs.npz", **returned)
"""


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    spec = [tf.TensorSpec((None, 4, 4), "float32")]
    return {
        name: tf.function(jax2tf.convert(row.fn, polymorphic_shapes=SHAPE), input_signature=spec, autograph=False)
        for name, row in ROWS.items()
    }


@pytest.fixture(scope="module")
def served(functions: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives what a function gives in a process without JAX; a file holds all quick ones, another the others."""
    made: dict[bool, dict[str, np.ndarray]] = {}

    def outputs_of(name: str) -> dict[str, np.ndarray]:
        quick = name in QUICK
        if quick not in made:
            names = [other for other in ROWS if (other in QUICK) == quick]
            made[quick] = served_outputs(
                {other: functions[other] for other in names}, tmp_path_factory.mktemp("served")
            )
        return made[quick]

    return outputs_of


def served_outputs(functions: dict[str, Any], folder: Any) -> dict[str, np.ndarray]:
    module = tf.Module()
    for name, fn in functions.items():
        setattr(module, name, fn)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, folder / "saved", options=options)
    np.save(folder / "x.npy", matrices(OTHER_BATCH))
    run_python(SERVE, folder, *functions, without=("jax", "jaxlib", "flax", "jaxbridge"))
    with np.load(folder / "outputs.npz") as outputs:
        return dict(outputs)


EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]


def gradient_of(fn: Any, x: np.ndarray) -> Any:
    return jax.jit(jax.grad(lambda a: loss(fn(a))))(x)


@pytest.mark.parametrize("name", EACH)
def test_live(functions: dict[str, Any], name: str):
    row, x = ROWS[name], matrices(BATCH)
    t = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(t)
        outs = tf.nest.flatten(functions[name](t))
        floats = [o for o in outs if o.dtype.is_floating]
        scalar = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in floats]) if floats else None
    for got, want in zip(outs, jax.tree.leaves(jax.jit(row.fn)(x)), strict=True):
        assert difference(got, want) <= row.values
    if row.gradients is not None:
        assert difference(tape.gradient(scalar, t), gradient_of(row.fn, x)) <= row.gradients


@pytest.mark.parametrize("name", EACH)
def test_served(served: Any, name: str):
    row, x, found = ROWS[name], matrices(OTHER_BATCH), served(name)
    for index, want in enumerate(jax.tree.leaves(jax.jit(row.fn)(x))):
        assert difference(found[f"{name}/{index}"], want) <= row.values
    if row.gradients is not None:
        assert difference(found[f"{name}/gradient"], gradient_of(row.fn, x)) <= row.gradients


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("name", ["inv", "qr", "svd"])
def test_fixed_sizes_and_dtypes(name: str, dtype: str):
    with jax.enable_x64(dtype == "float64"):
        x = matrices(1, dtype)[0]
        fn = {"inv": jnp.linalg.inv, "qr": lambda a: jnp.abs(jnp.linalg.qr(a)[1]), "svd": jnp.linalg.svdvals}[name]
        got, want = jax2tf.convert(fn)(tf.constant(x)), fn(x)
        assert difference(got, want) <= (1e-14 if dtype == "float64" else 2e-6)


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda"), ("tpu", "cpu"), ("cpu", "cuda", "rocm", "tpu")])
def test_platforms(platforms: tuple[str, ...]):
    fn = lambda a: jnp.linalg.slogdet(a)[1] + jnp.linalg.eigvalsh(spd(a)).sum(-1)
    got = jax2tf.convert(fn, polymorphic_shapes=SHAPE, native_serialization_platforms=platforms)(matrices(BATCH))
    assert difference(got, fn(matrices(BATCH))) <= 2e-6


@pytest.mark.parametrize(
    "fn", [lambda x: jax.lax.top_k(jnp.tanh(x), 2)[0], lambda x: x + jax.random.normal(jax.random.key(0), x.shape)]
)
def test_a_module_without_linear_algebra_is_what_jax_writes(fn: Any):
    jitted = jax.jit(lambda x: (fn(x),))
    struct = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    module = lower(jitted, [struct], LoweringOptions(("cpu",), target="1.13.0", nan="fast"))
    text = _jax_private.portable_module(jax.export.export(jitted, platforms=("cpu",))(struct).mlir_module())
    assert module.serialized == _jax_private.serialize_module(text, "1.13.0")


def test_where_tensorflow_needs_no_portable_rule_jax_keeps_its_own():
    """A TPU has an LU decomposition; the portable one is a loop."""
    struct = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    module = lower(jax.jit(lambda x: (jnp.linalg.inv(x),)), [struct], LoweringOptions(("tpu",)))
    assert b"LuDecomposition" in module.serialized


def test_tridiagonal_solve_is_lapacks():
    rng = np.random.default_rng(0)
    dl, d, du = rng.normal(size=(3, 5, 6)).astype("float32")
    d[:, ::2] = 0  # every other pivot must come from below
    b = rng.normal(size=(5, 6, 2)).astype("float32")
    want = jax.lax.linalg.tridiagonal_solve(dl, d, du, b)
    np.testing.assert_allclose(tridiagonal_solve(dl, d, du, b), want, rtol=1e-3, atol=1e-4)


def test_a_function_with_an_orthogonal_initializer():
    def fn(x):
        return x @ jax.nn.initializers.orthogonal()(jax.random.key(0), (4, 4))

    x = np.eye(4, dtype="float32")
    got = jax2tf.convert(fn)(x).numpy()
    np.testing.assert_allclose(got @ got.T, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(got, fn(x), atol=1e-5)
