"""What `jaxbridge.lower` says is what `jax.jit(fn).lower(...)` says of the pure function, on both Keras backends."""

import random
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxbridge
from jaxbridge.errors import JaxBridgeError, LoweringError, ShapeError
from tests.stages import models
from tests.stages.models import CASES, Case, struct

MEMORY = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes", "peak_memory_in_bytes")


def figures(lowered):
    """All that must be equal, of `jax.stages.Lowered` or ours."""
    compiled = lowered.compile()
    counts = [stage.cost_analysis() for stage in (lowered, compiled)]
    memory = compiled.memory_analysis()
    found = {
        f"{name} {i}": cost.get(name, 0.0) for i, cost in enumerate(counts) for name in ("flops", "bytes accessed")
    }
    return found | {name: getattr(memory, name) for name in MEMORY}


def operations(text):
    return sorted(re.findall(r"stablehlo\.\w+", text))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_figures_are_those_of_the_pure_function(case: Case, training: bool):
    fn, arguments = case.oracle(training)
    wanted = jax.jit(fn).lower(*arguments)
    have = jaxbridge.lower(case.layer(), case.inputs, training)
    assert operations(have.as_text()) == operations(wanted.as_text())
    assert figures(have) == figures(wanted)


def test_figures_of_the_backward_pass():
    def backward(params, inputs, cotangents):
        outputs, vjp = jax.vjp(lambda params: models.call(params, inputs), params)
        return outputs, vjp(cotangents)[0]

    wanted = jax.jit(backward).lower(models.WEIGHTS, struct(32, 8), struct(32, 16))
    have = jaxbridge.lower(jaxbridge.JaxLayer(models.call, models.init, name="net"), struct(32, 8), gradient=True)
    assert figures(have) == figures(wanted)
    assert set(have.out_info[3]) == {"net/params/w", "net/params/b"}


def test_frozen_variables_have_no_gradient():
    layer = jaxbridge.JaxLayer(models.call, models.init, name="net")
    layer(np.ones((4, 8), "float32"))
    layer.freeze("w")
    lowered = jaxbridge.lower(layer, struct(4, 8), gradient=True)
    assert set(lowered.out_info[3]) == {"net/params/b"}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.name)
def test_unknown_sizes_stay_unknown(case: Case, training: bool):
    fn, arguments = case.oracle(training)
    (b,) = jax.export.symbolic_shape("b")
    *others, x = arguments
    wanted = jax.jit(fn).lower(*others, jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype)).as_text()
    have = jaxbridge.lower(case.layer(), keras.KerasTensor((None, *x.shape[1:])), training)
    assert operations(have.as_text()) == operations(wanted)
    assert have.cost_analysis() is None  # nothing is made up
    with pytest.raises(LoweringError, match=r"float32\[batch, \d+\].*unknown sizes"):
        have.compile()
    with pytest.raises(LoweringError, match="HLO has no unknown sizes"):
        have.as_text("hlo")


def test_declared_sizes_are_kept():
    layer = jaxbridge.JaxLayer(lambda inputs: inputs.reshape(inputs.shape[0], -1, 2), polymorphic_shapes="(b, 2*k)")
    assert str(jaxbridge.lower(layer, keras.KerasTensor((None, None))).out_info[0].shape) == "(b, k, 2)"
    with pytest.raises(ShapeError, match="Axis 1"):
        jaxbridge.lower(layer, struct(4, 5))


INPUTS = {
    "KerasTensor": keras.KerasTensor((4, 8)),
    "ShapeDtypeStruct": struct(4, 8),
    "numpy": np.ones((4, 8), "float32"),
    "float64": np.ones((4, 8)),  # as Keras converts it
    "tensor": keras.ops.ones((4, 8)),
    "jax": jnp.ones((4, 8)),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_kinds_of_inputs(kind: str):
    lowered = jaxbridge.lower(jaxbridge.JaxLayer(models.call, models.init), INPUTS[kind])
    assert lowered.cost_analysis()["flops"] == 2 * 4 * 8 * 16 + 4 * 16
    assert lowered.args_info[0][1].shape == (4, 8)


def test_two_positional_inputs_and_integers():
    class Pick(nn.Module):
        @nn.compact
        def __call__(self, ids, scale):
            return nn.Embed(5, 3)(ids) * scale

    layer = jaxbridge.FlaxLayer(Pick(), name="pick")
    lowered = jaxbridge.lower(layer, (keras.KerasTensor((2, 4), "int32"), struct(2, 4, 1)))
    assert lowered.out_info[0].shape == (2, 4, 3)
    assert list(lowered.args_info[0][0]) == ["pick/params/Embed_0/embedding"]


def test_built_and_unbuilt_layers_lower_alike_and_stay_as_they_are():
    layer = jaxbridge.FlaxLayer(models.Head(), name="head")
    before = random.getstate()
    unbuilt = jaxbridge.lower(layer, struct(6, 16), True)
    assert not layer.built and layer.weights == [] and random.getstate() == before
    layer(np.ones((6, 16), "float32"))
    values = [keras.ops.convert_to_numpy(v.value) for v in layer.variables]
    built = jaxbridge.lower(layer, struct(6, 16), True)
    assert figures(built) == figures(unbuilt)
    for value, variable in zip(values, layer.variables, strict=True):
        np.testing.assert_array_equal(value, keras.ops.convert_to_numpy(variable.value))


def test_mixed_precision_is_in_the_program():
    layer = jaxbridge.JaxLayer(models.call, models.init, dtype="mixed_bfloat16")
    lowered = jaxbridge.lower(layer, struct(4, 8))
    assert "tensor<4x8xbf16>, tensor<8x16xbf16>" in lowered.as_text()
    assert lowered.compile().memory_analysis().argument_size_in_bytes == 4 * (4 * 8 + 8 * 16 + 16)  # float32
    assert lowered.out_info[0].dtype == jnp.bfloat16


def test_other_platforms_have_a_text_and_no_figures():
    layer = jaxbridge.JaxLayer(lambda inputs: jnp.linalg.qr(inputs)[1])
    here = jaxbridge.lower(layer, struct(4, 4)).as_text()
    lowered = jaxbridge.lower(layer, struct(4, 4), platforms=("tpu",))
    assert "lapack" in here and "lapack" not in lowered.as_text()
    assert lowered.cost_analysis() is None
    with pytest.raises(LoweringError, match="lowered for tpu, and JAX runs on cpu here"):
        lowered.compile()
    assert jaxbridge.lower(layer, struct(4, 4), platforms=("cpu",)).compile().as_text()


def test_shapes_of_jax_stages():
    lowered = jaxbridge.lower(jaxbridge.JaxLayer(models.call, models.init, name="net"), struct(4, 8))
    compiled = lowered.compile()
    assert "stablehlo.dot_general" in lowered.as_text() and "dot(" in lowered.as_text("hlo")
    assert "HloModule jit_net" in compiled.as_text()
    assert jax.tree.structure(compiled.input_shardings) == jax.tree.structure(lowered.args_info)
    assert jax.tree.structure(compiled.output_shardings) == jax.tree.structure(lowered.out_info)


MISTAKES = [
    (lambda: jaxbridge.lower(3, struct(4, 8)), "must be a Keras layer or model"),
    (lambda: jaxbridge.lower(lambda: 3, struct(4, 8)), "must return a Keras layer or model, and returned 3"),
    (lambda: jaxbridge.lower(CASES[0].layer(), struct(4, 8), platforms="cpu"), "must be a sequence out of"),
    (lambda: jaxbridge.lower(CASES[0].layer(), struct(4, 8), platforms=("gpu",)), "must be a sequence out of"),
    (lambda: jaxbridge.lower(CASES[0].layer(), struct(4, 8), platforms=("cpu", "cpu")), "each platform once"),
    (lambda: jaxbridge.lower(CASES[0].layer(), struct(4, 8)).as_text("mhlo"), "must be one of 'stablehlo', 'hlo'"),
    (lambda: jaxbridge.summary(CASES[0].layer()), "Nothing says what .* is called with"),
    (lambda: jaxbridge.lower(CASES[0].layer()), r"Nothing says what .*`inputs=keras\.KerasTensor\(\(8, 28, 28, 1\)\)`"),
    (
        lambda: jaxbridge.lower(models.Head(), struct(4, 8)),
        r"wrap it in a layer, `lambda: jaxbridge\.FlaxLayer\(Head\(",
    ),
    (lambda: jaxbridge.lower(models.Head, struct(4, 8)), r"wrap it in a layer, `lambda: jaxbridge\.FlaxLayer\(Head\("),
    (lambda: jaxbridge.lower(lambda: models.Head(), struct(4, 8)), r"returned Head\((?s:.*) It is a module: wrap it"),
    (lambda: jaxbridge.lower(eqx.nn.Identity, struct(4, 8)), r"`lambda: jaxbridge\.ModuleLayer\(Identity\("),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises(JaxBridgeError, match=message):
        mistake()


def test_a_function_that_cannot_be_traced_with_unknown_sizes():
    layer = jaxbridge.JaxLayer(lambda inputs: inputs[: int(inputs.shape[0])])
    with pytest.raises(ShapeError, match=r"(?s)float32\[batch, 8\].*Give sizes that are numbers"):
        jaxbridge.lower(layer, keras.KerasTensor((None, 8)))
