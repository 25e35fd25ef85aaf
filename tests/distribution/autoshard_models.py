"""Models for `autoshard`, with what it should decide of each: written down before it was asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
from flax import nnx

from jaxbridge import FlaxLayer, JaxLayer

WIDTH, HEADS, HIDDEN, WORDS, TIME = 16, 4, 64, 32, 8

#: Dimension to split by the last part(s) of a path; a path that none fits is replicated.
Expected = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model and what is expected of its plan on four devices.

    Attributes:
        make: makes the model; every call gives the same names.
        split: which dimension of which variables is split.
        forward: the all-reduces of a forward pass over the "model" axis.
        backward: those that the gradient of a loss adds.
        integers: whether it takes token ids.
    """

    make: Callable[[], keras.Model]
    split: Expected
    forward: int
    backward: int
    integers: bool = False


def functional(layers: Callable[[Any], Any], shape: tuple[int, ...], dtype: str = "float32") -> keras.Model:
    x = keras.Input(shape, dtype=dtype, name="x")
    return keras.Model(x, layers(x), name="net")


def keras_mlp():
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(HIDDEN, "relu", name="up"),
            keras.layers.Dense(WIDTH, name="down"),
        ],
        name="net",
    )


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm(name="norm1")(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention")(y, y)
        y = nn.LayerNorm(name="norm2")(x)
        y = nn.gelu(nn.Dense(HIDDEN, name="up")(y))
        return x + nn.Dense(WIDTH, name="down")(y)


class LinenTransformer(nn.Module):
    """Two blocks between a table of words and its transpose."""

    @nn.compact
    def __call__(self, ids):
        words = nn.Embed(WORDS, WIDTH, name="words")
        x = words(ids) + self.param("places", nn.initializers.normal(), (TIME, WIDTH))
        for index in range(2):
            x = LinenBlock(name=f"block{index}")(x)
        return words.attend(nn.LayerNorm(name="norm")(x))


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        linear = functools.partial(nnx.Linear, rngs=rngs)
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.query, self.key, self.value = (linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = linear(WIDTH, WIDTH), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def __call__(self, x):
        y = self.norm1(x)
        heads = lambda z: z.reshape(*z.shape[:-1], HEADS, WIDTH // HEADS)
        y = jax.nn.dot_product_attention(heads(self.query(y)), heads(self.key(y)), heads(self.value(y)))
        x = x + self.out(y.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class NnxTransformer(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.block = NnxBlock(rngs)
        self.head = nnx.Linear(WIDTH, WORDS, rngs=rngs)

    def __call__(self, ids):
        return self.head(self.block(self.words(ids)))


def embedding_model():
    """Scores of pairs of words: nothing but a table."""

    def layers(x):
        words = keras.layers.Embedding(WORDS, WIDTH, name="words")(x)
        words = keras.layers.LayerNormalization(name="norm")(words)
        return keras.ops.sum(words[:, 0] * words[:, 1], -1, keepdims=True)

    return functional(layers, (2,), "int32")


def tokens(layer: Callable[[], keras.layers.Layer]) -> Callable[[], keras.Model]:
    return lambda: functional(layer(), (TIME,), "int32")


#: Columns of the first product and rows of the next, with the bias between them; heads of the attention.
BLOCK = {
    "query/kernel": 1,
    "key/kernel": 1,
    "value/kernel": 1,
    "query/bias": 0,
    "key/bias": 0,
    "value/bias": 0,
    "out/kernel": 0,
    "up/kernel": 1,
    "up/bias": 0,
    "down/kernel": 0,
}

MODELS = {
    # Forward, the product with `down` sums over the hidden units. Backward, nothing: the input needs no gradient.
    "keras mlp": Model(keras_mlp, {"up/kernel": 1, "up/bias": 0, "down/kernel": 0}, 1, 0),
    # Forward: the lookup, and two a block (`out`, `down`). Backward: two a block (what flows into `up`; what flows into
    # query, key and value, as one), the gradient of `attend` and with it the loss of outputs that are split.
    "linen transformer": Model(
        tokens(lambda: FlaxLayer(LinenTransformer(), name="lm")), {**BLOCK, "words/embedding": 0}, 5, 5, True
    ),
    "nnx transformer": Model(
        tokens(lambda: FlaxLayer(NnxTransformer, name="lm")),
        {**BLOCK, "words/embedding": 0, "head/kernel": 1, "head/bias": 0},
        3,
        3,
        True,
    ),
    # Forward: the lookup. Backward, nothing: every device has the whole gradient of the rows that it holds.
    "embedding model": Model(embedding_model, {"words/embeddings": 0}, 1, 0, True),
}


# One MLP, written in other ways: parameter -> dimension that is split.


def function_mlp(call: Callable[[Any, Any], Any], shapes: Mapping[str, tuple[int, ...]]) -> Callable[[], keras.Model]:
    def init(rng, inputs):
        keys = dict(zip(shapes, jax.random.split(rng, len(shapes)), strict=True))
        return {name: jax.random.normal(keys[name], shape) for name, shape in shapes.items()}

    return lambda: functional(JaxLayer(call, init, name="mlp"), (WIDTH,))


VARIANTS = {
    "renamed": (
        function_mlp(
            lambda params, inputs: jnp.tanh(inputs @ params["b"] + params["z"]) @ params["a"],
            {"a": (HIDDEN, WIDTH), "b": (WIDTH, HIDDEN), "z": (HIDDEN,)},
        ),
        {"a": 0, "b": 1, "z": 0},
    ),
    "transposed kernels": (
        function_mlp(
            lambda params, inputs: jnp.tanh(inputs @ params["up"].T + params["bias"]) @ params["down"].T,
            {"up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN), "bias": (HIDDEN,)},
        ),
        {"up": 0, "down": 1, "bias": 0},
    ),
    "einsum, cast, in a scan and under jit": (
        function_mlp(
            lambda params, inputs: jax.jit(
                lambda x: jax.lax.scan(
                    lambda carry, w: (
                        jnp.einsum(
                            "oh,bh->bo",
                            w[1].astype("bfloat16"),
                            jnp.tanh(jnp.einsum("bi,ih->bh", carry, w[0].astype("bfloat16"))),
                        ),
                        None,
                    ),
                    x.astype("bfloat16"),
                    (params["up"], params["down"]),
                )[0]
            )(inputs),
            {"up": (3, WIDTH, HIDDEN), "down": (3, WIDTH, HIDDEN)},
        ),
        {"up": 2, "down": 2},
    ),
    "one kernel, reshaped in the function": (
        function_mlp(
            lambda params, inputs: jnp.tanh(inputs @ params["up"].reshape(WIDTH, HIDDEN)) @ params["down"],
            {"up": (WIDTH, 8, HIDDEN // 8), "down": (HIDDEN, WIDTH)},
        ),
        {"up": 1, "down": 0},
    ),
}
