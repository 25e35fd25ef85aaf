"""Keras' NNX mode (KERAS_NNX_ENABLED), which makes every Keras layer an nnx.Module."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import flax.linen as nn, keras, numpy as np
from jaxbridge import FlaxLayer

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        x = nn.BatchNorm(use_running_average=not training)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=not training)(x)

layer = FlaxLayer(Block(), seed=3)
model = keras.Sequential([keras.Input((3,)), layer])
model.compile("sgd", "mse")
x = np.ones((8, 3), "float32")
model.fit(x, np.ones((8, 4)), batch_size=4, verbose=0)
assert model.predict(x, verbose=0).shape == (8, 4)
assert np.asarray(layer.seed_generator.state.value).tolist() == [3, 2]
"""


@pytest.mark.keras_backends("jax")
def test_fit_and_predict():
    environment = {**os.environ, "KERAS_BACKEND": "jax", "KERAS_NNX_ENABLED": "true"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
