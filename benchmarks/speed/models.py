"""The models that are timed: linen modules, the same in native Keras layers, and training steps in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

LEARNING_RATE = 0.01


class MLP(nn.Module):
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


class Block(nn.Module):
    """A residual block as in a transformer's feed-forward part."""

    width: int = 64

    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(self.width)(nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x))))


class Attention(nn.Module):
    """A transformer's block."""

    width: int = 64

    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        return Block(self.width)(x)


class ViT(nn.Module):
    width: int = 64
    depth: int = 4

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.width, (4, 4), (4, 4))(x)
        x = x.reshape((x.shape[0], -1, self.width))
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for _ in range(self.depth):
            x = Attention(self.width)(x)
        return nn.Dense(10)(x.mean(1))


class ResNet(nn.Module):
    """Three stages of two residual convolutions with BatchNorm."""

    @nn.compact
    def __call__(self, x, training=False):
        norm = lambda: nn.BatchNorm(use_running_average=not training)
        x = nn.Conv(16, (3, 3))(x)
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            y = nn.relu(norm()(nn.Conv(channels, (3, 3), (stride, stride))(x)))
            y = norm()(nn.Conv(channels, (3, 3))(y))
            x = nn.relu(y + nn.Conv(channels, (1, 1), (stride, stride))(x))
        return nn.Dense(10)(x.mean((1, 2)))


SMALL, WIDE = (64, 10), (1024,) * 6
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "small MLP": (lambda: MLP(SMALL), (32,), 32),
    "6 x Dense(1024)": (lambda: MLP(WIDE), (1024,), 256),
    "ViT": (ViT, (32, 32, 3), 32),
    "ResNet-like CNN": (ResNet, (32, 32, 3), 32),
}
NATIVE = {"small MLP": SMALL, "6 x Dense(1024)": WIDE}


def data(name: str, batch: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    _, shape, default = MODULES[name]
    outputs = WIDE[-1] if name == "6 x Dense(1024)" else 10
    generator = np.random.default_rng(0)
    batch = batch or default
    return tuple(generator.normal(size=(batch, *s)).astype("float32") for s in (shape, (outputs,)))  # pyright: ignore


def native_layers(widths: tuple[int, ...]) -> list[Any]:
    return [
        *(keras.layers.Dense(width, activation="relu") for width in widths[:-1]),
        keras.layers.Dense(widths[-1]),
    ]


def layers_of(peer: str, name: str) -> list[Any]:
    """Returns the layers of a model: one of jaxbridge or of keras around a module, or native ones."""
    if peer == "native":
        return native_layers(NATIVE[name])
    return [flax_layer(peer)(MODULES[name][0]())]


def flax_layer(peer: str) -> Any:
    if peer == "keras":
        return keras.layers.FlaxLayer
    from jaxbridge import FlaxLayer

    return FlaxLayer


def sequential(layers: list[Any], shape: tuple[int, ...], jit_compile: bool | str = "auto") -> keras.Model:
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(keras.optimizers.SGD(LEARNING_RATE), "mse", jit_compile=jit_compile)
    return model


def plain_step(name: str) -> Callable[[], Any]:
    """Returns a training step in plain JAX: mean squared error, SGD, donated params."""
    module, (x, y) = MODULES[name][0](), map(jnp.asarray, data(name))
    variables = module.init(jax.random.key(0), x)
    params, state = variables["params"], {k: v for k, v in variables.items() if k != "params"}
    extra = {"training": True} if state else {}

    def loss(params, state):
        out, updated = module.apply({"params": params, **state}, x, mutable=list(state), **extra)
        return jnp.mean((out - y) ** 2), updated

    @jax.jit
    def step(params, state):
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), state, value

    held = [params, state]

    def run():
        held[0], held[1], value = step(*held)
        return float(value)

    return run
