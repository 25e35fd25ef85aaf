"""A training step on TensorFlow runs no backward pass that nobody asked for, and every gradient can be asked for.

TensorFlow asks a function for the gradients of all its inputs, and runs every op that it takes for stateful.
"""

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer

pytestmark = pytest.mark.keras_backends("tensorflow")

X = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
Y = np.zeros((3, 2), "float32")


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, training=False):
        return nn.tanh(nn.Dense(self.width)(nn.BatchNorm(use_running_average=not training)(x)))


def model_of():
    model = keras.Sequential(
        [keras.Input((5,)), FlaxLayer(Block(7), name="a"), FlaxLayer(Block(6), name="b"), keras.layers.Dense(2)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    return model


def executed(call):
    """Returns the shapes of the outputs of each converted module that TensorFlow executes in the first call of a function."""
    # `tf.summary.trace_on` has the same, only as a file for TensorBoard.
    from tensorflow.python.eager import context

    context.context().enable_run_metadata()
    try:
        call()
        graphs = context.context().export_run_metadata().partition_graphs
    finally:
        context.context().disable_run_metadata()
    nodes = [node for graph in graphs for node in graph.node if node.op == "XlaCallModule"]
    return [[tuple(dim.size for dim in shape.dim) for shape in node.attr["Sout"].list.shape] for node in nodes]


KERNELS = {(5, 7): "a", (7, 6): "b"}


@pytest.mark.parametrize(
    ("frozen", "want", "modules"),
    [((), {"a", "b"}, 4), (("a",), {"b"}, 3), (("b",), {"a"}, 4), (("a", "b"), set(), 2)],
)
def test_what_a_training_step_computes(frozen, want, modules):
    model = model_of()
    for name in frozen:
        model.get_layer(name).trainable = False
    model.compile("sgd", "mse", jit_compile=False)
    found = executed(lambda: model.train_on_batch(X, Y))
    assert len(found) == modules
    assert {KERNELS[shape] for shapes in found for shape in shapes if shape in KERNELS} == want
    assert (
        sum((3, 5) in shapes or (-1, 5) in shapes for shapes in found) <= 1
    )  # residuals of a; no gradient of the inputs


def test_frozen_variables_of_one_layer_are_left_out():
    model = keras.Sequential([keras.Input((5,)), FlaxLayer(nn.Sequential([nn.Dense(7), nn.Dense(6)]), name="both")])
    model.get_layer("both").freeze("*layers_0*")
    model.compile("sgd", "mse", jit_compile=False)
    found = executed(lambda: model.train_on_batch(X, np.zeros((3, 6), "float32")))
    assert {KERNELS[shape] for shapes in found for shape in shapes if shape in KERNELS} == {"b"}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("frozen", [(), ("a",), ("a", "b")], ids=str)
@pytest.mark.parametrize("where", ["around a function", "in a function"])
def test_all_gradients_can_be_asked_for(jit, frozen, where):
    """Also of the inputs, which the function knows no tape of, and of what is not trained; equal to those of eager calls."""
    import tensorflow as tf

    model = model_of()
    for name in frozen:
        model.get_layer(name).trainable = False
    x = tf.constant(X)
    asked_for = [x, *(weight.value for name in "ab" for weight in keras.tree.flatten(model.get_layer(name).params))]

    def gradients(call):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.reduce_sum(tf.sin(call(x)))
        return tape.gradient(found, asked_for)

    want = gradients(lambda x: model(x, training=True))
    call = tf.function(lambda x: model(x, training=True), jit_compile=jit, autograph=False)
    got = gradients(call) if where == "around a function" else tf.function(lambda: gradients(call), autograph=False)()
    assert len(want) == 9 and all(gradient is not None for gradient in want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)  # other fusions of float32
