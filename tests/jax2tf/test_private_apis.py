"""The private names of JAX and TensorFlow that the package uses: each is called once and must mean what it meant.

A failure here says which private API moved; everything else that fails follows from it.
"""

import re

import jax
import jax.export
import jax.interpreters.mlir
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge.jax2tf import _jax_private, _tf_private
from jaxbridge.jax2tf.linear_algebra import PORTABLE_RULES, tridiagonal_solve_rule
from jaxbridge.jax2tf.stablehlo import parse_version

TEXT = """
module {
  func.func @main(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.sine %arg0 : tensor<f32>
    return %0 : tensor<f32>
  }
}
"""


def test_jax_portable_module_makes_calls_of_composites():
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 5"), jnp.float32)
    text = jax.export.export(jax.jit(lambda x: jax.lax.top_k(x, 2)))(struct).mlir_module()
    portable = _jax_private.portable_module(text)
    assert "stablehlo.composite" in text
    assert "stablehlo.composite" not in portable
    assert "func.func" in portable
    assert "top_k" in "".join(re.findall(r"(?m)^#loc.*", portable))
    assert ".py" in text
    assert ".py" not in portable
    assert ".py" in _jax_private.portable_module(text, source_info=True)
    assert "@shape_assertion" in text
    assert "@shape_assertion" not in portable


def test_jax_export_with_rules_makes_no_assertions_about_sizes():
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 5"), jnp.float32)
    exported = _jax_private.export_with_rules(jax.jit(lambda x: 2 * x), [struct], ("cpu",), (), [])
    assert "shape_assertion" not in exported.mlir_module()


def test_jax_serialize_module_writes_the_version():
    module = _jax_private.serialize_module(TEXT, "1.7.0")
    assert b"StableHLO_v1.7.0" in module


def test_jax_serialize_module_knows_the_sdy_dialect():
    """The public function of jaxlib does not."""
    text = TEXT.replace("module {", 'module {\n  sdy.mesh @mesh = <["x"=1]>', 1)
    assert b"StableHLO_v1.13.0" in _jax_private.serialize_module(text, "1.13.0")


def test_jax_versions():
    assert parse_version(_jax_private.oldest_version()) < parse_version(_jax_private.written_version())


def test_tf_call_module_runs_what_jax_writes():
    module = _jax_private.serialize_module(
        TEXT, min(_jax_private.written_version(), _tf_private.read_version(), key=parse_version)
    )
    [result] = _tf_private.call_module(
        [tf.constant(0.5)],
        version=_tf_private.maximum_calling_convention(),
        module=module,
        Tout=[tf.float32],
        Sout=[()],
        platforms=["CPU"],
        function_list=[],
        has_token_input_output=False,
        disabled_checks=[],
    )
    np.testing.assert_allclose(result, np.sin(0.5), rtol=1e-6)


def test_tf_maximum_calling_convention():
    assert 9 <= _tf_private.maximum_calling_convention() < 100


def test_tf_read_version():
    assert parse_version(_tf_private.read_version()) >= (1, 0, 0)


def test_tf_is_recorded():
    x, other = tf.constant(1.0), tf.constant(2.0)
    seen = []

    @tf.function(autograph=False)
    def traced(value):
        seen.append(_tf_private.is_recorded([value]))
        with tf.GradientTape() as tape:
            tape.watch(value)
            seen.append(_tf_private.is_recorded([value]))
        return value

    @tf.function(autograph=False)
    def captured():
        seen.append(_tf_private.is_recorded([tf.identity(x)]))
        return x

    assert not _tf_private.is_recorded([x])
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert _tf_private.is_recorded([other, x])
        assert not _tf_private.is_recorded([other])
        traced(x)
        captured()
    assert seen == [False, True, True]


def test_tf_may_record():
    assert not _tf_private.may_record()
    with tf.GradientTape() as tape:
        assert _tf_private.may_record()  # variables are watched only once they are read
        with tape.stop_recording():
            assert not _tf_private.may_record()
    with tf.autodiff.ForwardAccumulator(tf.constant(1.0), tf.constant(1.0)):
        assert _tf_private.may_record()


def test_tf_call_flat_gives_what_the_public_call_gives():
    scale = tf.Variable(2.0)
    function = tf.function(
        lambda x, y: {"a": scale * x, "b": (y, None)},
        input_signature=[tf.TensorSpec((None,)), tf.TensorSpec((), tf.int32)],
        autograph=False,
    ).get_concrete_function()
    x, y = tf.constant([1.0, 2.0]), tf.constant(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outs = _tf_private.call_flat(function, [x, y])
    assert outs["b"][0] == 3 and outs["b"][1] is None
    np.testing.assert_allclose(outs["a"], [2.0, 4.0])
    np.testing.assert_allclose(tape.gradient(outs["a"], x), [2.0, 2.0])


def test_jax_export_with_rules_takes_ours_and_leaves_custom_calls_to_the_audit():
    struct = jax.ShapeDtypeStruct((3,), jnp.float32)
    kernel = jax.jit(lambda x: jax.ffi.ffi_call("my_kernel", struct)(x))
    exported = _jax_private.export_with_rules(kernel, [struct], ("cpu",), (), ())
    assert ("my_kernel", "ffi_call") in _jax_private.custom_calls(exported.mlir_module())
    rules = [(jax.lax.sin_p, jax.interpreters.mlir.lower_fun(lambda x, **_: x + 1, multiple_results=False))]
    exported = _jax_private.export_with_rules(jax.jit(jnp.sin), [struct], ("cpu",), (), rules)
    np.testing.assert_array_equal(exported.call(jnp.zeros(3)), np.ones(3))


def test_jax_has_every_linear_algebra_rule():
    rules = _jax_private.linear_algebra_rules(PORTABLE_RULES, {"tridiagonal_solve": tridiagonal_solve_rule})
    assert {primitive.name for primitive, _ in rules} == PORTABLE_RULES.keys()
    assert all(callable(rule) for _, rule in rules)


def test_jax_debug_primitives_have_rules_that_write_nothing():
    struct = jax.ShapeDtypeStruct((3,), jnp.float32)

    def fn(x):
        jax.debug.print("{}", x)
        jax.debug.callback(lambda value: None, x)
        return x

    exported = _jax_private.export_with_rules(jax.jit(fn), [struct], ("cpu",), (), _jax_private.silent_debug_rules())
    assert _jax_private.custom_calls(exported.mlir_module()) == []


def test_jax_source_line_is_the_users():
    [equation] = jax.jit(lambda x: jax.lax.sin(x)).trace(1.0).jaxpr.eqns
    assert re.search(r"test_private_apis\.py:\d+ \(.*<lambda>\)$", _jax_private.source_line(equation))


@pytest.mark.parametrize("ordered", [True, False])
def test_jax_ordered_effects(ordered):
    [equation] = jax.jit(lambda x: jax.debug.print("{}", x, ordered=ordered)).trace(1.0).jaxpr.eqns
    assert [_jax_private.is_ordered_effect(effect) for effect in equation.effects] == [ordered]
