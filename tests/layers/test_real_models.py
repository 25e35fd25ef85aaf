"""Models that people use, small: fitted, and what is exported gives what the model gives, without JAX."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

import jaxbridge
from jaxbridge import FlaxLayer, ModuleLayer


class ViT(nn.Module):
    """Patches, a class token, positions, two encoder blocks."""

    width: int = 16
    depth: int = 2

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(self.width, (4, 4), strides=(4, 4), name="patches")(x)
        x = x.reshape((x.shape[0], x.shape[1] * x.shape[2], self.width))
        token = self.param("token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, self.width)), x], 1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width))
        for _ in range(self.depth):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=not train)(y)
            y = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dropout(0.1, deterministic=not train)(nn.Dense(self.width)(y))
        return nn.Dense(3)(nn.LayerNorm()(x[:, 0]))


class MaskedTransformer(nnx.Module):
    """Token ids; the Keras mask keeps padding out of attention and of the mean."""

    def __init__(self, vocabulary: int, width: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, width, dropout_rate=0.1, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, ids):
        mask = ids != 0
        x = self.embed(ids)
        x = x + self.dropout(self.attention(self.norms[0](x), mask=nnx.make_attention_mask(mask, mask)))
        weights = mask[..., None].astype(x.dtype)
        return self.head((self.norms[1](x) * weights).sum(1) / jnp.maximum(weights.sum(1), 1))


class StatefulMLP(eqx.Module):
    """Counts its training calls and keeps a running mean, in eqx.nn.State."""

    layers: list
    dropout: eqx.nn.Dropout
    mean: eqx.nn.StateIndex
    inference: bool

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(8, 16, key=first), eqx.nn.Linear(16, 3, key=second)]
        self.dropout = eqx.nn.Dropout(0.1)
        self.mean = eqx.nn.StateIndex((jnp.zeros(16), jnp.zeros((), jnp.int32)))
        self.inference = False

    def __call__(self, x, state, key=None):
        hidden = jax.nn.relu(x @ self.layers[0].weight.T + self.layers[0].bias)
        mean, count = state.get(self.mean)
        if not self.inference:
            mean, count = 0.9 * mean + 0.1 * hidden.mean(0), count + 1
            state = state.set(self.mean, (mean, count))
        hidden = self.dropout(hidden - mean, key=key)
        return hidden @ self.layers[1].weight.T + self.layers[1].bias, state


def image_model(net):
    """Haiku's nets take `is_training` where they have statistics."""

    def forward(x, is_training):
        return net()(x, is_training)

    return hk.transform_with_state(forward)


def images(rows):
    return np.random.default_rng(0).normal(size=(rows, 32, 32, 3)).astype("float32")


def tokens(rows):
    ids = np.random.default_rng(0).integers(1, 11, size=(rows, 6)).astype("int32")
    ids[:, 4:] *= np.arange(rows)[:, None] % 2 == 0
    return ids


def rows_of_8(rows):
    return np.random.default_rng(0).normal(size=(rows, 8)).astype("float32")


slow = pytest.mark.slow
MODELS = {
    "linen ViT": (lambda: FlaxLayer(ViT(), name="net"), images, (slow,)),
    "nnx transformer with masks": (lambda: FlaxLayer(MaskedTransformer, args=(11, 8), name="net"), tokens, ()),
    "equinox MLP with State": (lambda: ModuleLayer(StatefulMLP, name="net"), rows_of_8, ()),
    "haiku ResNet18": (
        lambda: ModuleLayer(image_model(lambda: hk.nets.ResNet18(3)), name="net"),
        images,
        (slow,),
    ),
    "haiku MobileNetV1": (
        lambda: ModuleLayer(image_model(lambda: hk.nets.MobileNetV1(num_classes=3)), name="net"),
        images,
        (slow,),
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, _, marks) in MODELS.items()])
def test_fit_and_export(name, tmp_path):
    make, data, _ = MODELS[name]
    x = data(8)
    model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype.name), make()])
    # A step small enough for a net of random weights.
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [np.array(w) for w in model.get_weights()]
    losses = model.fit(x, np.arange(8) % 3, batch_size=4, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert sum(changed) > len(changed) / 2
    report = jaxbridge.export_saved_model(model, tmp_path / "served")
    # The export has been served in a process without JAX, and compared with the model.
    assert report.verification.max_difference < 1e-3
