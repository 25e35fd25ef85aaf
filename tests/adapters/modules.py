"""Modules of every library: the material of the tests of adapters and of the module contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import flax
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


class LinenByMutability(nn.Module):
    """Knows the mode by what it may change."""

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=not self.is_mutable_collection("batch_stats"))(x)


class LinenNorm(nn.Module):
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.BatchNorm(use_running_average=not train, axis_name=self.axis_name)(nn.Dense(2)(x))


class LinenSampler(nn.Module):
    """Draws in both modes."""

    @nn.compact
    def __call__(self, x):
        return x + jax.random.normal(self.make_rng("sample"), x.shape)


class LinenKey(nn.Module):
    """Takes its key as an argument, and reads it in training mode only."""

    @nn.compact
    def __call__(self, x, z_rng, train: bool):
        return x + jax.random.normal(z_rng, x.shape) if train else x


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 0.5
    deterministic: bool = True


class LinenConfigured(nn.Module):
    config: Config = Config()

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(self.config.rate, deterministic=self.config.deterministic)(x)


@flax.struct.dataclass
class Output:
    y: jax.Array
    hidden: jax.Array | None = None


class EquinoxOutput(eqx.Module):
    y: jax.Array
    hidden: jax.Array | None = None


class NamedOutput(NamedTuple):
    y: jax.Array
    hidden: jax.Array | None = None


class LinenReturns(nn.Module):
    """Returns what it computes as `kind` makes it."""

    kind: Callable

    @nn.compact
    def __call__(self, x):
        return self.kind(y=nn.Dense(2)(x))


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


class NNXConfigured(nnx.Module):
    def __init__(self, config: Config):
        self.config = config
        self.w = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x * self.w * (1 if self.config.deterministic else 2)


class NNXNorm(nnx.Module):
    def __init__(self, axis_name: str | None = None, *, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(3, axis_name=axis_name, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(x))


class NNXKey(nnx.Module):
    """Takes its streams as an argument."""

    def __init__(self):
        self.w = nnx.Param(jnp.ones(()))

    def __call__(self, x, rngs: nnx.Rngs):
        return x * self.w + jax.random.normal(rngs.noise(), x.shape)


class NNXNoise(nnx.Module):
    """Draws in both modes."""

    def __init__(self, rngs: nnx.Rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x + jax.random.normal(self.rngs.noise(), x.shape)


class EquinoxNorm(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self, axis_name: str):
        self.norm = eqx.nn.BatchNorm(3, axis_name=axis_name, mode="batch")

    def __call__(self, x, state):
        return self.norm(x, state)


class EquinoxSampler(eqx.Module):
    """Draws in both modes."""

    w: jax.Array = dataclasses.field(default_factory=lambda: jnp.ones(()))

    def __call__(self, x, key):
        return x * self.w + jax.random.normal(key, x.shape)


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


def haiku_norm(axis_name, x, is_training):
    return hk.BatchNorm(True, True, 0.9, cross_replica_axis=axis_name)(x, is_training)


def haiku_sampler(x):
    return x + jax.random.normal(hk.next_rng_key(), x.shape)
