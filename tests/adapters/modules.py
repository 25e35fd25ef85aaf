"""Modules of every library: the material of the tests of adapters and of the module contract."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx


class LinenBlock(nn.Module):
    """No get_config: its fields are what is saved."""

    width: int = 4
    activation: object = nn.relu
    inner: nn.Module | None = None

    @nn.compact
    def __call__(self, x, train: bool):
        x = self.activation(nn.Dense(self.width)(x))
        x = x if self.inner is None else self.inner(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dropout(0.5, deterministic=not train)(x)


class LinenSowing(nn.Module):
    """Sows into a collection that init makes too, and into one that it does not."""

    @nn.compact
    def __call__(self, x):
        y = nn.Dense(2)(x)
        self.sow("losses", "activity", (y**2).mean())
        self.sow("intermediates", "y", y)
        return y


class LinenCounter(nn.Module):
    """A collection that first appears in a call, after initialisation."""

    @nn.compact
    def __call__(self, x):
        if not self.is_initializing():
            count = self.variable("cache", "count", lambda: jnp.zeros((), jnp.int32))
            count.value += 1
        return x * self.param("w", nn.initializers.ones, (x.shape[-1],))


class LinenNoise(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        if not deterministic:
            x = x + jax.random.normal(self.make_rng("noise"), x.shape)
        return nn.Dropout(0.5)(nn.Dense(4)(x), deterministic=deterministic)


class LinenMethods(nn.Module):
    def setup(self):
        self.dense = nn.Dense(4)

    def __call__(self, x):
        return self.dense(x)

    def encode(self, x, times):
        return times * self.dense(x)


class NNXBlock(nnx.Module):
    """BatchNorm and Dropout, shared references, a list, a flag of its own."""

    def __init__(self, features: int, width: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(features, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(2)])
        self.again = self.layers[0]

    def __call__(self, x):
        x = self.dropout(self.norm(self.first(x)))
        for layer in self.layers:
            x = layer(jnp.tanh(x))
        return self.again(x)


class NNXFlag(nnx.Module):
    def __init__(self):
        self.training = True
        self.w = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x * self.w * (2 if self.training else 1)


class NNXLora(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.base = nnx.Linear(3, 4, rngs=rngs)
        self.lora = nnx.LoRA(3, 2, 4, rngs=rngs)

    def __call__(self, x):
        return self.base(x) + self.lora(x)


class NNXSowing(nnx.Module):
    """Keeps the last activation, made during the call."""

    def __init__(self, rngs: nnx.Rngs):
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        y = self.dense(x)
        self.seen = nnx.Intermediate(y)
        return y


class NNXStatic(nnx.Module):
    """Changes an attribute that is no Variable."""

    def __init__(self):
        self.calls = 0
        self.w = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        self.calls += 1
        return x * self.w


class NNXNoise(nnx.Module):
    """Draws in both modes."""

    def __init__(self, rngs: nnx.Rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x + jax.random.normal(self.rngs.noise(), x.shape)


class EquinoxBlock(eqx.Module):
    """State, draws, and an integer array, for single examples."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    offsets: jax.Array

    def __init__(self, features: int, width: int, key):
        self.linear = eqx.nn.Linear(features, width, key=key)
        self.norm = eqx.nn.BatchNorm(width, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.offsets = jnp.arange(width)

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.linear(x) + self.offsets, state)
        return self.dropout(x, key=key), state


def haiku_block(x, is_training):
    x = hk.BatchNorm(True, True, 0.9)(hk.Linear(4)(x), is_training)
    return hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x


class HaikuBlock(hk.Module):
    def __init__(self, width, name=None):
        super().__init__(name=name)
        self.width = width

    def __call__(self, x, is_training):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(self.width)(x), is_training)
        return hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x


def autoencoder():
    encoder, decoder = hk.Linear(2, name="encoder"), hk.Linear(3, name="decoder")

    def init(x):
        return decoder(encoder(x))

    return init, {"encode": encoder, "decode": decoder}
