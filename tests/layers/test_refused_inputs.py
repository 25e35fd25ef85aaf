"""Inputs and variables that cannot be are said, with what to write instead."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import io_callback, sparse

from jaxbridge import JaxLayer, export_saved_model, jax2tf
from jaxbridge.errors import ConversionError, LostVariablesError, SignatureError, StructureError

X = np.ones((2, 3), "float32")

NO_ARRAYS = {
    "ragged": (lambda: tf.ragged.constant([[1.0], [1.0, 2.0]]), "RaggedTensor.*to_tensor"),
    "sparse": (lambda: tf.sparse.from_dense(X), r"SparseTensor.*tf\.sparse\.to_dense"),
    "text": (lambda: np.array(["a", "b"]), "look texts up first"),
    "text of TensorFlow": (lambda: tf.constant(["a", "b"]), "look texts up first"),
    "objects": (lambda: np.array([X, None], object), "rows of different lengths"),
    "times": (lambda: np.array(["2026-01-01"], "datetime64[D]"), "astype"),
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_a_layer_says_what_to_pass(name):
    make, message = NO_ARRAYS[name]
    layer = JaxLayer(lambda inputs: inputs)
    with pytest.raises(SignatureError, match=message):
        layer(make())
    assert layer(X).shape == (2, 3)


def test_a_layer_of_texts_says_it_in_a_graph():
    with pytest.raises(SignatureError, match="look texts up first"):
        JaxLayer(lambda inputs: inputs)(keras.Input((3,), dtype="string"))


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_a_converted_function_says_what_to_pass(name):
    make, message = NO_ARRAYS[name]
    with pytest.raises(ConversionError, match=f"Argument .0. is a .*{message}"):
        jax2tf.convert(lambda x: x)(make())


@pytest.mark.keras_backends("tensorflow")
def test_a_sparse_array_of_jax_is_none_of_tensorflow():
    with pytest.raises(SignatureError, match=r"BCOO.*todense"):
        JaxLayer(lambda inputs: inputs)(sparse.BCOO.fromdense(X))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2"])
def test_a_dtype_without_variables_is_said_with_its_path(dtype):
    init = lambda rng, inputs: {"block": {"w": jnp.ones(3, dtype)}}
    layer = JaxLayer(lambda params, inputs: inputs * params["block"]["w"].astype("float32"), init, name="net")
    with pytest.raises(StructureError, match=f"'params/block/w' of layer 'net' has the dtype {dtype}"):
        layer(X)
    assert layer.variables == []


@pytest.mark.keras_backends("jax")
def test_variables_that_a_failed_step_gave_away_are_said(tmp_path):
    def refuse(value):
        raise ValueError("no")

    def call(params, inputs, training):
        more = jax.lax.stop_gradient(io_callback(refuse, jax.ShapeDtypeStruct((), "float32"), 1.0)) if training else 0
        return inputs @ params["w"] + more

    layer = JaxLayer(call, lambda rng, inputs: {"w": jnp.ones((3, 1))}, name="net")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    with pytest.raises(Exception, match="no"):
        model.fit(X, X[:, :1], verbose=0)
    for use in (
        lambda: layer(X),
        lambda: model.save_weights(tmp_path / "w.weights.h5"),
        lambda: export_saved_model(model, tmp_path / "served"),
    ):
        with pytest.raises(LostVariablesError, match=r"net/params/w' has no value any more. A `fit`"):
            use()
