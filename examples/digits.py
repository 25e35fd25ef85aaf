"""A Flax CNN inside a Keras model: trained with `fit` on handwritten digits, exported, and served without JAX.

python3 run.py digits                               # on Keras' JAX backend
KERAS_BACKEND=tensorflow python3 run.py digits      # the same file on its TensorFlow backend
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import flax.linen as nn
import keras
import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxbridge

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class CNN(nn.Module):
    """Plain Flax: nothing here knows of Keras."""

    @nn.compact
    def __call__(self, x, training: bool):
        for features in (32, 64):
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not training, momentum=0.9)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(nn.Dropout(0.3, deterministic=not training)(x))


def main(epochs: int, out: Path) -> int:
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = digits.images[..., None].astype("float32")  # 1797 scans of 8 × 8 pixels, from 0 to 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )

    inputs = keras.Input((8, 8, 1), name="images")
    x = keras.layers.Rescaling(1 / 16)(inputs)
    logits = jaxbridge.FlaxLayer(CNN(), name="cnn")(x)
    model = keras.Model(inputs, {"logits": logits})
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(train_x, train_y, batch_size=64, epochs=epochs, validation_data=(test_x, test_y)).history

    train_accuracy = model.evaluate(train_x, train_y, verbose=0)[1]
    test_accuracy = model.evaluate(test_x, test_y, verbose=0)[1]
    print(
        f"accuracy: {train_accuracy:.2%} on {len(train_x)} training digits, {test_accuracy:.2%} on {len(test_x)} others"
    )

    out.mkdir(parents=True, exist_ok=True)
    expected = model.predict(test_x, verbose=0)["logits"]
    draw_predictions(test_x, test_y, expected, out / "predictions.png")
    draw_learning_curve(history, out / "learning_curve.png")

    report = jaxbridge.export_saved_model(model, out / "saved_model")
    print(f"exported: {report.weights_bytes / 1e3:.0f} kB of weights and a graph of {report.graph_bytes / 1e3:.0f} kB")
    batches = [{"images": batch} for batch in (test_x, *np.split(test_x, 6))]  # all at once, then 60 at a time
    served = [outputs["logits"] for outputs in jaxbridge.serve_without_jax(report.path, batches)]
    at_once, in_six = served[0], np.concatenate(served[1:])
    difference = max(np.abs(at_once - expected).max(), np.abs(in_six - expected).max())
    print(f"served without JAX: accuracy {np.mean(at_once.argmax(-1) == test_y):.2%} all at once,", end=" ")
    print(f"{np.mean(in_six.argmax(-1) == test_y):.2%} at 60 a batch, largest difference to the model {difference:.1e}")
    print(f"pictures and SavedModel are in {out}/")

    if test_accuracy < 0.97 or difference > 1e-5:
        print("FAILED: the test accuracy must be at least 97 %, the difference at most 1e-5")
        return 1
    return 0


def draw_predictions(images, labels, logits, path: Path):
    """The first 36 test digits, then the ones that the model gets wrong."""
    predicted = logits.argmax(-1)
    shown = np.concatenate([np.arange(36), np.flatnonzero(predicted != labels)])[:48]
    figure, axes = plt.subplots(4, 12, figsize=(12, 5), layout="constrained")
    for axis in axes.flat:
        axis.axis("off")
    for axis, index in zip(axes.flat, shown, strict=False):  # fewer where the model makes fewer mistakes
        right = predicted[index] == labels[index]
        axis.imshow(images[index, ..., 0], cmap="gray_r")
        axis.set_title(
            predicted[index] if right else f"{predicted[index]}, not {labels[index]}", color="green" if right else "red"
        )
    figure.suptitle("Predictions on test digits: three rows of any, one of mistakes")
    figure.savefig(path, dpi=100)


def draw_learning_curve(history: dict, path: Path):
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        epochs = range(1, len(history[name]) + 1)
        axis.plot(epochs, history[name], ".-", label="training, with dropout")
        axis.plot(epochs, history[f"val_{name}"], ".-", label="test")
        axis.set(xlabel="epoch", ylabel=name)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training digits (15)")
    parser.add_argument("--out", type=Path, default=Path("digits-out"), help="folder for what is written (digits-out)")
    sys.exit(main(**vars(parser.parse_args())))
