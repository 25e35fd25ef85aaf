"""Small models of every kind: the material of the table in cases.py."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np

serializable = keras.saving.register_keras_serializable(package="tests")


def normal(rng: Any, *shape: int) -> jax.Array:
    return jax.random.normal(rng, shape) / np.sqrt(shape[0])


# Functions for JaxLayer.


@serializable
def dense_init(rng, inputs):
    return {"w": normal(rng, inputs.shape[-1], 4), "b": jnp.full(4, 0.1)}


@serializable
def dense_call(params, inputs):
    return jnp.tanh(inputs @ params["w"] + params["b"])


@serializable
def remat_call(params, inputs):
    return jnp.sum(jax.checkpoint(dense_call)(params, inputs) ** 2, axis=-1, keepdims=True)


@serializable
def no_params_call(inputs):
    return jnp.sin(inputs) * 2


@serializable
def counting_init(rng, inputs, training):
    assert training is True
    return {"w": normal(rng, inputs.shape[-1], 4)}, {"mean": jnp.zeros(4), "count": jnp.zeros((), jnp.int32)}


@serializable
def counting_call(params, state, inputs, training):
    """Centres its outputs by a running mean, and counts the training calls."""
    x = inputs @ params["w"]
    if training:
        mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
        state = {"mean": mean, "count": state["count"] + 1}
    return x - state["mean"], state


@serializable
def noisy_call(params, rng, inputs, training):
    x = dense_call(params, inputs)
    if not training:
        return x
    return jnp.where(jax.random.bernoulli(rng, 0.5, x.shape), x / 0.5, 0)


@serializable
def noisy_state_init(rng, inputs):
    return dense_init(rng, inputs), {"key": jnp.zeros(2, jnp.uint32), "sum": jnp.zeros(())}


@serializable
def noisy_state_call(params, state, rng, inputs, training):
    """Adds noise and keeps the key it drew with, so that the key can be compared."""
    x = dense_call(params, inputs)
    if training:
        x = x + 0.1 * jax.random.normal(rng, x.shape)
        state = {"key": rng, "sum": state["sum"] + x.sum()}
    return x, state


class Affine(NamedTuple):
    weight: Any
    bias: Any
    scale: Any


class Counts(NamedTuple):
    calls: Any
    sums: Any


@serializable
def nested_init(rng, inputs):
    """Every kind of container, a Python number, an integer among the params, None."""
    first, second = jax.random.split(rng)
    affine = Affine(normal(first, inputs.shape[-1], 4), jnp.zeros(4), 1.5)
    params = (affine, [normal(second, 4, 2), {"power": jnp.array(2, jnp.int32), "none": None}])
    return params, Counts(jnp.zeros((), jnp.int32), (jnp.zeros(2), [jnp.ones(())]))


@serializable
def nested_call(params, state, inputs, training):
    affine, (second, extra) = params
    x = (inputs @ affine.weight + affine.bias) * affine.scale
    x = jnp.tanh(x @ second) ** extra["power"]
    if training:
        total, (product,) = state.sums
        state = Counts(state.calls + 1, (total + x.sum(0), [product * 0.5]))
    return x, state


@serializable
def pair_init(rng, inputs):
    return {"a": normal(rng, inputs[0].shape[-1], 3), "b": normal(rng, inputs[1].shape[-1], 3)}


@serializable
def pair_call(params, inputs):
    a, b = inputs
    return jnp.tanh(a @ params["a"]) * (b @ params["b"])


@serializable
def dict_init(rng, inputs):
    return {"table": normal(rng, 11, 4), "w": normal(rng, inputs["x"].shape[-1], 4)}


@serializable
def dict_call(params, inputs):
    embedded = params["table"][inputs["ids"]].mean(1)
    x = inputs["x"] @ params["w"]
    return {"both": embedded * x, "parts": {"embedded": embedded, "x": jnp.tanh(x)}}


@serializable
def fours_init(rng, inputs):
    return {"w": normal(rng, 4, 2)}


@serializable
def fours_call(params, inputs):
    return jnp.tanh(jnp.reshape(inputs, (inputs.shape[0], -1, 4)) @ params["w"]).sum(1)


@jax.custom_vjp
def doubled_gradient(x):
    return jnp.sin(x)


doubled_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


@serializable
def custom_vjp_call(params, inputs):
    return doubled_gradient(inputs @ params["w"] + params["b"])


@serializable
def while_call(params, inputs):
    x = dense_call(params, inputs)
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y + x), x)


# Haiku, through JaxLayer.


def haiku_net(inputs, training):
    x = hk.Linear(8)(inputs)
    # Initialised on constant inputs, whose variance is rounding noise: a large epsilon does not amplify it.
    x = hk.BatchNorm(True, True, 0.9, eps=0.1)(x, is_training=training)
    if training:
        x = hk.dropout(hk.next_rng_key(), 0.3, x)
    return hk.Linear(2)(jax.nn.relu(x))


HAIKU = hk.transform_with_state(haiku_net)


@serializable
def haiku_init(rng, inputs, training):
    return HAIKU.init(rng, inputs, training)


@serializable
def haiku_call(params, state, rng, inputs, training):
    return HAIKU.apply(params, state, rng, inputs, training)


# Modules for FlaxLayer. Keras saves a module by its get_config.


class Configured:
    def get_config(self):
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {field.name: getattr(self, field.name) for field in fields if field.name not in ("parent", "name")}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@serializable
class MLP(Configured, nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)))


@serializable
class CNN(Configured, nn.Module):
    @nn.compact
    def __call__(self, x, training):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not training, momentum=0.8)(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), strides=(2, 2)).reshape((x.shape[0], -1))
        x = nn.Dropout(0.4, deterministic=not training)(x)
        return nn.softmax(nn.Dense(3)(x))


@serializable
class Transformer(Configured, nn.Module):
    """Token ids, exact gelu, attention, normalisation of both kinds, dropout and top_k: what conversions trip over."""

    width: int = 8

    @nn.compact
    def __call__(self, ids, training: bool = False):
        x = nn.Embed(13, self.width)(ids)
        y = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        x = x + nn.Dropout(0.2, deterministic=not training)(y)
        y = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)), approximate=False)
        x = x + nn.Dense(self.width)(y)
        x = nn.BatchNorm(use_running_average=not training, momentum=0.8)(x)
        return jax.lax.top_k(x.mean(1), 3)[0]


@serializable
class LSTM(Configured, nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.RNN(nn.LSTMCell(4))(x)[:, -1])


@serializable
class ImageModel(Configured, nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        return nn.Dense(2)(x.mean((1, 2)))


@serializable
class TwoInputs(Configured, nn.Module):
    @nn.compact
    def __call__(self, a, b, training=False):
        noise = jax.random.normal(self.make_rng("noise"), a.shape) if training else 0.0
        return nn.Dense(3)(a + noise) * nn.Dense(3)(b)
