"""Shapes and dtypes of outputs, found without running anything; the hook that overrides them."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import JaxLayer
from jaxbridge.errors import StructureError
from tests import harness, models
from tests.cases import BY_NAME, CASES, floats


def shape_of(case):
    return jax.tree.map(lambda tensor: tensor.shape, case.symbolic_args()[0])


#: What `compute_output_shape` gives where every unknown size of the case is None.
SHAPES = {
    "no_params": (None, 5),
    "remat": (None, 1),
    "nested": (None, 2),
    "pair": (None, 3),
    "dicts": {"both": (None, 4), "parts": {"embedded": (None, 4), "x": (None, 4)}},
    "fours": (None, 2),
    "haiku": (None, 2),
    "mlp": (None, 2),
    "cnn": (None, 3),
    "lstm": (None, 2),
    "image": (None, 2),
}


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "dicts"])
def test_compute_output_shape_needs_no_build(name):
    layer = BY_NAME[name].layer()
    assert layer.compute_output_shape(shape_of(BY_NAME[name])) == SHAPES[name]
    assert not layer.built and layer.weights == []


def test_compute_output_shape_of_a_known_batch():
    layer = BY_NAME["mlp"].layer()
    assert layer.compute_output_shape((4, 5)) == (4, 2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compute_output_spec_equals_what_a_call_gives(case):
    layer = case.layer()
    specs = layer.compute_output_spec(*case.symbolic_args())
    assert not layer.built
    outputs = layer(*case.args(3, 8))
    for spec, output in zip(jax.tree.leaves(specs), jax.tree.leaves(harness.numbers(outputs)), strict=True):
        assert spec.dtype == output.dtype.name
        assert spec.shape == (None, *output.shape[1:])
    assert jax.tree.structure(specs) == jax.tree.structure(outputs)


def test_compute_output_spec_keeps_integer_outputs():
    layer = JaxLayer(lambda inputs: {"top": jnp.argmax(inputs, -1), "any": inputs > 0})
    specs = layer.compute_output_spec(keras.KerasTensor((None, 3)))
    assert (specs["top"].dtype, specs["any"].dtype) == ("int32", "bool")


def test_an_unknown_size_stays_unknown_in_the_output():
    layer = JaxLayer(lambda inputs: jnp.concatenate([inputs, inputs], 1))
    assert layer.compute_output_shape((None, None, 3)) == (None, None, 3)
    assert layer.compute_output_shape((2, 5, 3)) == (2, 10, 3)


# The hook.


def reshape_call(inputs):
    """Cannot be traced for an unknown size: only the hook knows."""
    return jnp.reshape(inputs, (int(inputs.shape[0]), int(inputs.shape[1])))


@models.serializable
def doubled(shape):
    return (*shape[:-1], 2 * shape[-1])


@models.serializable
def double_call(inputs):
    return jnp.concatenate([inputs, inputs], -1)


def test_the_hook_overrides():
    asked = []
    layer = JaxLayer(double_call, compute_output_shape_fn=lambda shape: asked.append(shape) or doubled(shape))
    assert layer.compute_output_shape((None, 5)) == (None, 10)
    assert asked == [(None, 5)]


def test_the_hook_gives_structures():
    layer = JaxLayer(
        lambda inputs: {"a": inputs["x"] * 2, "b": [inputs["y"].sum(-1)]},
        compute_output_shape_fn=lambda shapes: {"a": shapes["x"], "b": [shapes["y"][:1]]},
    )
    x = {"x": keras.Input((3,)), "y": keras.Input((4,))}
    model = keras.Model(x, layer(x))
    assert model.output["a"].shape == (None, 3) and model.output["b"][0].shape == (None,)
    out = harness.numbers(model({"x": floats(2, 3), "y": floats(2, 4)}))
    harness.assert_same(out, {"a": floats(2, 3) * 2, "b": [floats(2, 4).sum(-1)]})


def test_the_hook_is_in_the_config():
    layer = JaxLayer(double_call, compute_output_shape_fn=doubled)
    again = JaxLayer.from_config(layer.get_config())
    assert again.compute_output_shape_fn is doubled
    assert again.compute_output_shape((None, 5)) == (None, 10)


def test_spec_with_a_hook_keeps_the_traced_dtype():
    layer = JaxLayer(lambda inputs: jnp.argmax(inputs, -1), compute_output_shape_fn=lambda shape: shape[:-1])
    spec = layer.compute_output_spec(keras.KerasTensor((None, 3)))
    assert (spec.shape, spec.dtype) == ((None,), "int32")


def test_the_hook_answers_for_a_function_that_cannot_be_traced():
    layer = JaxLayer(reshape_call, compute_output_shape_fn=lambda shape: shape)
    x = keras.Input((5,))
    assert layer(x).shape == (None, 5)


def test_a_hook_that_asks_the_layer_does_not_recurse():
    """A hook may use another layer's shapes; the two ways of asking do not call each other."""
    inner = BY_NAME["mlp"].layer()
    layer = JaxLayer(
        lambda inputs: inputs[:, :2], compute_output_shape_fn=lambda shape: inner.compute_output_shape(shape)
    )
    assert layer.compute_output_shape((None, 5)) == (None, 2)
    assert layer.compute_output_spec(keras.KerasTensor((None, 5))).shape == (None, 2)


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        (lambda shape: (*shape[:-1], 7), r"\(.*7\).*\(2, 10\)"),
        (lambda shape: shape[:-1], r"\(2, 10\)"),
        (lambda shape: {"a": shape}, "structure"),
        (lambda shape: "no shape", "must return a shape"),
    ],
    ids=["size", "rank", "structure", "no shape"],
)
def test_a_hook_that_lies_is_caught_at_the_first_call(lie, text):
    layer = JaxLayer(double_call, compute_output_shape_fn=lie)
    with pytest.raises(StructureError, match=text):
        layer(np.ones((2, 5), "float32"))


@pytest.mark.keras_backends("tensorflow")
def test_an_assertion_in_a_graph_counts_the_inputs_only():
    import tensorflow as tf

    layer = JaxLayer(
        lambda params, inputs: inputs.reshape(inputs.shape[0], -1, 4) * params["w"],
        params={"w": np.ones(4, "float32")},
        polymorphic_shapes="(b, 4*k)",
    )
    inputs = keras.Input((None,))
    keras.Model(inputs, layer(inputs))
    function = tf.function(lambda x: layer(x), input_signature=[tf.TensorSpec((None, None))], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Axis 1 of input 0 .*4\*k"):
        function(np.ones((2, 7), "float32"))
