"""What an export promises of sizes: kept from what declares it, and enforced where it is served."""

import json
import subprocess
import sys

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import JaxLayer, export_saved_model
from jaxbridge.export._keras_private import input_was_made_up

# Of served models, without JAX: whether each set of shapes is taken.
_SERVE = """
import json, sys
sys.modules["jax"] = None
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
def takes(shapes):
    try:
        loaded.serve([tf.ones(shape) for shape in shapes])
        loaded.signatures["serving_default"](**{name: tf.ones(shape) for name, shape in zip("xy", shapes)})
    except tf.errors.InvalidArgumentError as error:
        return "declared" in str(error) or "constraint" in str(error)
    return None
print(json.dumps([takes(shapes) for shapes in json.loads(sys.argv[2])]))
"""


def test_declared_sizes_are_enforced_in_every_input(tmp_path):
    x, y = keras.Input((None, 3), name="x"), keras.Input((None,), name="y")
    rows = keras.layers.Lambda(lambda pair: pair[0][:, 0] + keras.ops.sum(pair[1], 1, keepdims=True))([x, y])
    model = keras.Model([x, y], JaxLayer(lambda inputs: inputs * 2)(rows))
    export_saved_model(
        model,
        tmp_path / "served",
        polymorphic_shapes=["(b, 2*k, 3)", "(b, k + 1)"],
        polymorphic_constraints=("k >= 2",),
        verify=False,
    )
    fits = [[(2, 4, 3), (2, 3)], [(1, 6, 3), (1, 4)]]
    breaks = [[(2, 7, 3), (2, 4)], [(2, 4, 3), (3, 3)], [(2, 4, 3), (2, 4)], [(2, 2, 3), (2, 2)]]
    arguments = [str(tmp_path / "served"), json.dumps([*fits, *breaks])]
    found = subprocess.run([sys.executable, "-c", _SERVE, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout.splitlines()[-1]) == [None] * len(fits) + [True] * len(breaks)


def twice(inputs):
    return inputs * 2


def built_by_a_call():
    model = keras.Sequential([JaxLayer(twice)])
    model(np.ones((2, 3), "float32"))
    return model


#: model, batch size of the export
BATCHES = {
    "batch_size": (lambda: keras.Sequential([keras.Input((3,), batch_size=4), JaxLayer(twice)]), 4),
    "batch_size, a name": (lambda: keras.Sequential([keras.Input((3,), batch_size=4, name="x"), JaxLayer(twice)]), 4),
    "batch_shape": (lambda: keras.Sequential([keras.Input(batch_shape=(4, 3)), JaxLayer(twice)]), 4),
    "free": (lambda: keras.Sequential([keras.Input((3,)), JaxLayer(twice)]), None),
    "the batch of a call": (built_by_a_call, None),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_size_that_an_input_promises_is_kept(name, tmp_path):
    make, batch = BATCHES[name]
    report = export_saved_model(make(), tmp_path / "served", verify=False)
    assert [shape for shape, _ in report.inputs.values()] == [(batch, 3)]


def test_the_private_place_of_keras_that_tells_them_apart():
    assert [input_was_made_up(make()) for make, _ in BATCHES.values()] == [False] * 4 + [True]


def pairs(inputs):
    return jnp.concatenate([inputs, jnp.repeat(inputs[:, ::2], 2, axis=1)], -1)


def test_what_the_layer_of_an_input_declares_holds_for_the_export(tmp_path):
    x = keras.Input((None, 3))
    model = keras.Model(x, JaxLayer(pairs, polymorphic_shapes="(b, 2*k, 3)")(x))
    export_saved_model(model, tmp_path / "served", verify=False)
    served = tf.saved_model.load(tmp_path / "served").serve
    np.testing.assert_array_equal(served(tf.ones((2, 4, 3))), np.ones((2, 4, 6)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="declared"):
        served(tf.ones((2, 5, 3)))


class OwnError(Exception):
    pass


def test_a_model_that_does_not_run_raises_its_own_error(tmp_path):
    class Fails(keras.Model):
        def call(self, inputs):
            if self.fails:
                raise OwnError("not about sizes")
            return inputs * 2

    model = Fails()
    model.fails = False
    model(np.ones((2, 3), "float32"))
    model.fails = True
    with pytest.raises(OwnError, match="not about sizes"):
        export_saved_model(model, tmp_path / "served", verify=False)
    assert not (tmp_path / "served").exists()
