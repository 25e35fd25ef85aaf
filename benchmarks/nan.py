"""What it costs on TensorFlow that maxima and minima keep NaN: training steps with `nan="keep"` and `nan="fast"`, by turns.

KERAS_BACKEND=tensorflow python -m benchmarks.nan
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import flax.linen as nn
import jax.numpy as jnp
import keras
import numpy as np

from benchmarks.speed.models import ViT
from benchmarks.speed.timing import alternating
from jaxbridge import FlaxLayer, jax2tf

ROUNDS = 40


class CNN(nn.Module):
    """Two convolutions, each with a max-pool."""

    @nn.compact
    def __call__(self, x):
        for channels in (16, 32):
            x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape((x.shape[0], -1)))


def step(module, nan):
    model = keras.Sequential([keras.Input((32, 32, 3)), FlaxLayer(module, nan=nan)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x, y = np.random.default_rng(0).normal(size=(32, 32, 32, 3)), np.zeros((32, 10))
    x, y = keras.ops.convert_to_tensor(x, "float32"), keras.ops.convert_to_tensor(y, "float32")
    return lambda: model.train_on_batch(x, y)


def call(fn, nan):
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2048, 2048)), "float32")
    import tensorflow as tf

    function = tf.function(jax2tf.convert(fn, nan=nan, with_gradient=False), autograph=False)
    return lambda: function(x).numpy()


def main() -> None:
    rows = {name: lambda nan, m=module: step(m(), nan) for name, module in {"CNN, two pools": CNN, "ViT": ViT}.items()}
    rows["jnp.max of 4M floats"] = lambda nan: call(lambda x: jnp.max(x, -1), nan)
    rows["jnp.maximum of 4M floats"] = lambda nan: call(lambda x: jnp.maximum(x, x.T), nan)
    for name, make in rows.items():
        found = alternating({nan: make(nan) for nan in ("keep", "fast")}, ROUNDS)
        print(
            f"{name}: keep {found['keep'] * 1e3:.2f} ms, fast {found['fast'] * 1e3:.2f} ms: {found['keep'] / found['fast']:.3f}"
        )


if __name__ == "__main__":
    main()
