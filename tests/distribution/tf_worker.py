"""One of two workers of `tf.distribute`: `TF_CONFIG=... python -m tests.distribution.tf_worker INDEX FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.distribution import all_gather, all_reduce

ROWS, STEPS = 8, 3


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.tanh(nn.Dense(16)(x)))


def make_model() -> keras.Model:
    """The same on both backends, which a native layer's first weights are not."""
    return keras.Sequential([keras.Input((3,)), FlaxLayer(Net(), name="net", seed=0)])


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


def noise(rng: Any, inputs: Any) -> Any:
    return inputs if rng is None else jax.random.normal(rng, inputs.shape)


def running_mean(state: Any, inputs: Any, training: bool) -> tuple[Any, Any]:
    return inputs, {"mean": 0.5 * state["mean"] + 0.5 * jnp.mean(inputs)} if training else state


def main(index: int, folder: Path) -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        draw, count = JaxLayer(noise, seed=7), JaxLayer(running_mean, state={"mean": np.zeros((), "float32")})
        draw.build((3,))
        count.build((None, 3))
    own = tf.constant(rows()[index * ROWS // 2 : (index + 1) * ROWS // 2])

    def step() -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(own, training=True) - 1)) / ROWS
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [v.value for v in weights]), weights)
        count(own, training=True)
        everyone = all_gather(own, 0), all_reduce(own, "max")
        return all_reduce(loss), draw(tf.zeros(3), training=True), *everyone

    run = tf.function(lambda: strategy.run(step), autograph=False)
    results = [[part.numpy() for part in run()] for _ in range(STEPS)]
    found = {
        "losses": [float(loss) for loss, *_ in results],
        "draws": [draw.tolist() for _, draw, *_ in results],
        "gathered": results[0][2].tolist(),
        "largest": results[0][3].tolist(),
        "mean": float(count.variables[0].numpy()),
        "weights": [np.asarray(v.numpy()).tolist() for v in model.trainable_variables],
    }
    (folder / f"worker{index}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
