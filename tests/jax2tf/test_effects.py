"""What stops a conversion before it is lowered, what is left out of it, and what the audit of custom calls lets pass."""

import warnings
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import io_callback
from jax.experimental import jax2tf as original
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxbridge import jax2tf
from jaxbridge.errors import ConversionError, UnsupportedOperationError
from jaxbridge.jax2tf import audit

X = np.arange(8, dtype="float32").reshape(2, 2, 2)


def over_mesh(x: Any, *sizes: int) -> Any:
    axes = ("data", "model")[: len(sizes)]
    body = lambda v: jax.lax.psum(v, axes)
    return jax.shard_map(body, mesh=AbstractMesh(sizes, axes), in_specs=P(), out_specs=P())(x)


def kernel(x: Any) -> Any:
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def debug(fn: Any) -> Any:
    return lambda x: (fn(x), jnp.sin(x))[1]


REFUSED = {
    "pure_callback": (
        lambda x: jax.pure_callback(np.sin, x, x),
        r"`pure_callback` at .*test_effects.py:\d+ .*jax.numpy",
    ),
    "nested": (lambda x: jax.lax.map(jax.jit(lambda v: jax.pure_callback(np.sin, v, v)), x), "`pure_callback` at .*:"),
    "io_callback": (lambda x: io_callback(np.sin, x, x), "`io_callback` at .*outside of the converted function"),
    "ordered": (lambda x: io_callback(np.sin, x, x, ordered=True), "`io_callback` at .*test_effects.py"),
    "ordered print": (debug(lambda x: jax.debug.print("{}", x, ordered=True)), "without `ordered=True`"),
    "integers": (lambda x: jax.pure_callback(lambda v: v, jnp.int32(1), x.astype(int)[0, 0, 0]), "`pure_callback`"),
    "call_tf graph": (lambda x: original.call_tf(tf.sin, call_tf_graph=True)(x), "Write `call_tf\\(f\\)` without"),
    "shard_map": (lambda x: over_mesh(x, 2, 4), r"mesh \{'data': 2, 'model': 4\}.*with_sharding_constraint"),
    "eig": (
        lambda x: jnp.linalg.eigvals(x).real,
        r"`eig` at .*test_effects.py:\d+ .*'lapack_sgeev_ffi'.* on cpu.*`jnp.linalg.eigh`",
    ),
    "schur": (lambda x: jax.scipy.linalg.schur(x[0])[0], "`schur` at .*'lapack_sgees_ffi'.*eigenvalues"),
    "hessenberg": (lambda x: jax.lax.linalg.hessenberg(x)[0], "`hessenberg` at .*'lapack_sgehrd_ffi'"),
    "pivoted qr": (lambda x: jax.scipy.linalg.qr(x[0], pivoting=True)[1], r"`geqp3` at .*without pivoting"),
}


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("name", list(REFUSED))
def test_is_refused(name: str, with_gradient: bool):
    fn, message = REFUSED[name]
    converted = jax2tf.convert(fn, with_gradient=with_gradient)
    x = tf.constant(X)
    with tf.GradientTape() as tape, pytest.raises(UnsupportedOperationError, match=f"(?s)The primitive .*{message}"):
        tape.watch(x)
        converted(x)


def test_the_error_is_what_jax_and_convert_raise():
    assert issubclass(UnsupportedOperationError, NotImplementedError) and issubclass(
        UnsupportedOperationError, ConversionError
    )


def test_a_primitive_that_a_platform_lacks():
    converted = jax2tf.convert(lambda x: jnp.linalg.eigvals(x).real, native_serialization_platforms=("cpu", "tpu"))
    with pytest.raises(UnsupportedOperationError, match=r"`eig` at .*test_effects.py.*platforms.*tpu"):
        converted(X)


def test_unknown_sizes_of_matrices():
    with pytest.raises(UnsupportedOperationError, match=r"`eigh` at .*matrices \(the last two axes\) need fixed ones"):
        jax2tf.convert(lambda x: jnp.linalg.eigvalsh(x), polymorphic_shapes="(2, n, n)")(X)


LEFT_OUT = {
    "print": (debug(lambda x: jax.debug.print("{}", x)), "jax.debug.print"),
    "callback": (debug(lambda x: jax.debug.callback(lambda v: None, x)), "jax.debug.callback"),
    "in a loop": (
        lambda x: jax.lax.fori_loop(0, 2, lambda i, c: (jax.debug.print("{}", i), jnp.sin(c))[1], x),
        "jax.debug.print",
    ),
}


@pytest.mark.parametrize("name", list(LEFT_OUT))
def test_debugging_is_left_out_with_a_warning(name: str):
    fn, written = LEFT_OUT[name]
    x = tf.constant(X)
    with (
        pytest.warns(UserWarning, match=rf"is without `{written}` at .*test_effects.py:\d+") as warned,
        tf.GradientTape() as tape,
    ):
        tape.watch(x)
        y = jax2tf.convert(fn)(x)
    assert len(warned) == 1
    np.testing.assert_allclose(y, fn(X), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(y, x), jax.grad(lambda v: fn(v).sum())(X), rtol=1e-5, atol=1e-6)


def test_call_tf_is_compiled_in():
    fn = lambda x: jnp.cos(original.call_tf(tf.sin)(x))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = jax2tf.convert(fn)(x)
    np.testing.assert_allclose(y, np.cos(np.sin(X)), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(y, x), -np.sin(np.sin(X)) * np.cos(X), rtol=1e-4, atol=1e-6)


def test_a_variable_that_call_tf_captures_is_named():
    scale = tf.Variable(2.0, name="scale")
    converted = jax2tf.convert(original.call_tf(lambda x: x * scale))
    with pytest.warns(UserWarning, match="reads 'scale:0'.*constants"):
        np.testing.assert_allclose(converted(tf.ones(3)), np.full(3, 2.0))


def test_shard_map_over_one_device():
    mesh = jax.make_mesh((1,), ("data",))
    fn = lambda x: jax.shard_map(lambda v: jax.lax.psum(v, "data") * 2, mesh=mesh, in_specs=P(), out_specs=P())(x)
    np.testing.assert_allclose(jax2tf.convert(fn)(X), 2 * X)


# The audit.


def test_an_unknown_custom_call_is_refused_unless_the_user_vouches_for_it():
    convert = lambda *checks: jax2tf.convert(kernel, native_serialization_disabled_checks=checks, with_gradient=False)
    with pytest.raises(UnsupportedOperationError, match=r"`ffi_call` at .*'my_kernel'.*custom_call\('my_kernel'\)"):
        convert()(X)
    graph = tf.function(convert(jax2tf.DisabledSafetyCheck.custom_call("my_kernel")), autograph=False)
    assert graph.get_concrete_function(tf.TensorSpec(X.shape)).structured_outputs.shape == X.shape


def test_what_a_branch_of_one_platform_calls_is_not_missing_on_another():
    fn = lambda x: jax.lax.platform_dependent(x, cuda=fmha, default=jnp.sin)
    fmha = lambda x: jax.ffi.ffi_call("__cudnn$thing", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    converted = jax2tf.convert(fn, native_serialization_platforms=("cpu", "cuda"), with_gradient=False)
    np.testing.assert_allclose(converted(X), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "platforms"),
    [
        ("Qr", {"cpu", "cuda", "rocm", "tpu"}),
        ("mhlo.topk", {"cpu", "cuda", "rocm", "tpu"}),
        ("mhlo.erf", {"cpu", "cuda", "rocm", "tpu"}),
        ("stablehlo.dynamic_top_k", {"cpu", "cuda", "rocm", "tpu"}),
        ("LuDecomposition", {"tpu"}),
        ("lapack_sgetrf_ffi", set()),
        ("cusolver_getrf_ffi", set()),
        ("nobody_has_this", set()),
    ],
)
def test_table(target: str, platforms: set[str]):
    assert {p for p in ("cpu", "cuda", "rocm", "tpu") if audit.runs_on(target, p)} == platforms


def test_no_row_of_the_table_hides_another():
    for row in audit.TABLE:
        assert audit.row_of(row.target.replace("*", "x")) == row


def test_conversions_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax2tf.convert(jnp.linalg.inv)(X + np.eye(2, dtype="float32"))
