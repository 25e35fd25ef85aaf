"""Layers and models that the tests of the compiler stages lower, each with the JAX function that it must equal."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

import jaxbridge

F32 = np.float32


def struct(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, what it is called with, and `oracle(training) -> (fn, arguments)`, the JAX function and its structs."""

    name: str
    layer: Callable[[], Any]
    inputs: Any
    oracle: Callable[[bool], tuple[Callable[..., Any], tuple[Any, ...]]]


def init(rng, inputs):
    return {"b": jnp.zeros((16,)), "w": jax.random.normal(rng, (inputs.shape[-1], 16))}


def call(params, inputs):
    return jnp.tanh(inputs @ params["w"] + params["b"])


WEIGHTS = {"b": struct(16), "w": struct(8, 16)}


def count_init(rng, inputs):
    return {"w": jax.random.normal(rng, (8, 4))}, {"kept": jnp.ones((4,)), "seen": jnp.zeros((), jnp.int32)}


def count(params, state, inputs, training):
    seen = state["seen"] + inputs.shape[0] if training else state["seen"]
    return jax.nn.softmax(inputs @ params["w"] * state["kept"]), {"kept": state["kept"], "seen": seen}


def count_oracle(training):
    def fn(params, state, inputs):
        outputs, after = count(params, state, inputs, training)
        return outputs, [after["seen"]] if training else []  # what does not change is not returned

    return fn, ({"w": struct(8, 4)}, {"kept": struct(4), "seen": struct(dtype=np.int32)}, struct(6, 8))


def noise(rng, inputs):
    return inputs if rng is None else inputs + jax.random.normal(rng, inputs.shape)


def noise_oracle(training):
    def fn(seed, inputs):
        key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
        return noise(jax.random.key_data(key), inputs)

    arguments = struct(6, 8)
    return (fn, (struct(2, dtype=np.uint32), arguments)) if training else (lambda x: noise(None, x), (arguments,))


class Head(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.BatchNorm(use_running_average=not training)(x)
        return nn.Dense(2)(nn.Dropout(0.1, deterministic=not training)(x))


def head_oracle(training):
    def train(variables, seed, inputs):
        key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
        rngs = {"dropout": jax.random.fold_in(key, zlib.crc32(b"dropout"))}
        return Head().apply(variables, inputs, True, mutable=["batch_stats"], rngs=rngs)

    def infer(variables, inputs):
        return Head().apply(variables, inputs, False)

    x = struct(6, 16)
    variables = jax.eval_shape(lambda x: Head().init(jax.random.key(0), x, False), x)
    return (train, (variables, struct(2, dtype=np.uint32), x)) if training else (infer, (variables, x))


CASES = [
    Case(
        "a function", lambda: jaxbridge.JaxLayer(call, init), struct(32, 8), lambda _: (call, (WEIGHTS, struct(32, 8)))
    ),
    Case("state", lambda: jaxbridge.JaxLayer(count, count_init), struct(6, 8), count_oracle),
    Case("randomness", lambda: jaxbridge.JaxLayer(noise), struct(6, 8), noise_oracle),
    Case("linen with both", lambda: jaxbridge.FlaxLayer(Head()), struct(6, 16), head_oracle),
    Case(
        "two inputs",
        lambda: jaxbridge.JaxLayer(lambda inputs: inputs[0] @ inputs[1]),
        [struct(4, 8), struct(8, 2)],
        lambda _: (lambda a, b: a @ b, (struct(4, 8), struct(8, 2))),
    ),
]


def mixed():
    """Native Keras layers, a function and a linen module in one model."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(4, activation="relu", name="dense"),
            keras.layers.Dropout(0.5, name="dropout"),
            jaxbridge.JaxLayer(call, init, name="fn"),
            jaxbridge.FlaxLayer(Head(), name="head"),
        ],
        name="mixed",
    )


class Scale(keras.layers.Layer):
    """A user's layer, which Keras was not told of."""

    def build(self, input_shape):
        self.factor = self.add_weight(shape=(input_shape[-1],), name="factor")

    def call(self, inputs):
        return keras.ops.relu(inputs * self.factor)


def times_two(inputs):
    return inputs * 2


def with_own_parts():
    parts = [Scale(name="scale"), jaxbridge.JaxLayer(times_two), keras.layers.Dense(2, activation=times_two)]
    return keras.Sequential([keras.Input((8,)), *parts], name="own")


def nested():
    """A layer that is called twice, a model in a model, and an addition outside of all layers."""
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="deep")], name="inner")
    inputs, shared = keras.Input((8,)), keras.layers.Dense(8, use_bias=False, name="shared")
    return keras.Model(inputs, inner(shared(shared(inputs))) + inputs, name="nested")


def ten_billion():
    """A native Keras model of ten billion parameters."""
    layers = [keras.layers.Dense(100_000, use_bias=False), keras.layers.Dense(92_000, use_bias=False)]
    return keras.Sequential([keras.Input((8192,)), *layers], name="large")


def ten_billion_layer():
    """A layer of as many parameters, in linen."""
    return jaxbridge.FlaxLayer(nn.Sequential([nn.Dense(100_000, use_bias=False), nn.Dense(92_000, use_bias=False)]))


class UpDown(nn.Module):
    """A matrix product whose columns are split, and one whose rows are, which needs an all-reduce."""

    @nn.compact
    def __call__(self, x):
        x = jax.nn.relu(nn.Dense(32, use_bias=False, name="up")(x))
        return nn.Dense(16, use_bias=False, name="down")(x)


def split_layer():
    return jaxbridge.FlaxLayer(UpDown(), name="net")


def split_model():
    """The same in native Keras layers."""
    up = keras.layers.Dense(32, use_bias=False, activation="relu", name="up")
    return keras.Sequential([keras.Input((16,)), up, keras.layers.Dense(16, use_bias=False, name="down")], name="net")
