"""A Flax transformer with sharding annotations, trained by Keras on a mesh, exported, and reloaded by JAX on another mesh.

python examples/sharded_transformer.py      # 8 virtual CPU devices; a minute

The module says how its weights are split (`nn.with_logical_partitioning`) and its activations (`nn.with_logical_constraint`),
in names of its own; `rules` say which axis of the mesh each name is. Nothing else in this file names a device.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxbridge
from jaxbridge.distribution import describe_layouts

RULES = {"batch": "data", "length": None, "embed": None, "heads": "model", "kv": None, "mlp": "model", "vocab": "model"}
VOCABULARY, LENGTH = 16, 12


def split(*names):
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Block(nn.Module):
    """Attention and a feed-forward part, each split over `model`: the first half by columns, the second by rows."""

    width: int = 32
    heads: int = 4

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        project = lambda name: nn.DenseGeneral(
            (self.heads, self.width // self.heads), kernel_init=split("embed", "heads", "kv"), use_bias=False, name=name
        )(y)
        query, key, value = project("query"), project("key"), project("value")
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
        scores = jnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
        mixed = nn.with_logical_constraint(mixed, ("batch", "length", "heads", "kv"))
        x = x + nn.DenseGeneral(self.width, axis=(-2, -1), kernel_init=split("heads", "kv", "embed"), name="out")(mixed)
        hidden = nn.gelu(nn.Dense(4 * self.width, kernel_init=split("embed", "mlp"), name="wide")(nn.LayerNorm()(x)))
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "mlp"))
        return x + nn.Dense(self.width, kernel_init=split("mlp", "embed"), name="narrow")(hidden)


class Transformer(nn.Module):
    """Predicts the next token. Plain Flax: nothing here knows of Keras or of devices."""

    width: int = 32
    blocks: int = 2

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, self.width, embedding_init=split("vocab", "embed"))(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.1), (LENGTH, self.width))
        for _ in range(self.blocks):
            x = Block(self.width)(x)
        return nn.Dense(VOCABULARY, kernel_init=split("embed", "vocab"), name="logits")(nn.LayerNorm()(x))


def sequences(count: int, seed: int = 0) -> np.ndarray:
    """Counts upwards from a random token, by a random step: the second token tells the rest."""
    random = np.random.default_rng(seed)
    start, step = random.integers(0, VOCABULARY, (count, 1)), random.integers(1, 4, (count, 1))
    return ((start + step * np.arange(LENGTH + 1)) % VOCABULARY).astype("int32")


def main(epochs: int, out: Path) -> int:
    keras.utils.set_random_seed(0)
    devices = keras.distribution.list_devices()[:8]
    mesh = keras.distribution.DeviceMesh((2, 4), ("data", "model"), devices)
    nothing_by_name = keras.distribution.LayoutMap(mesh)  # the module says it all
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=nothing_by_name, batch_dim_name="data")
    )

    sharding = jaxbridge.Sharding(mesh, inputs=P("batch"), outputs=P("batch", None, "vocab"), rules=RULES)
    layer = jaxbridge.FlaxLayer(Transformer(), sharding=sharding, name="transformer")
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32", name="tokens"), layer], name="model")
    print(describe_layouts(model), end="\n\n")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    data = sequences(2048)
    history = model.fit(data[:, :-1], data[:, 1:], batch_size=64, epochs=epochs, verbose=2).history

    held = describe_layouts(model).device_bytes
    whole = sum(4 * int(np.prod(v.shape)) for v in [*model.variables, *model.optimizer.variables])
    print(f"each of 8 devices holds {held:,} of {whole:,} bytes, those of the optimizer included")

    exported = jaxbridge.export_saved_model(model, out / "saved_model")
    print(f"TensorFlow serves it on one device: largest difference {exported.verification.max_difference:.1e}")
    print(f"the file says: mesh {jaxbridge.read_sharding(out / 'saved_model').mesh}")

    test = sequences(64, seed=1)
    expected = model.predict(test[:, :-1], verbose=0)
    loaded = jaxbridge.load_jax(out / "saved_model", {"data": 4, "model": 2})
    logits = jax.jit(loaded)(loaded.params, test[:, :-1])
    difference = float(np.abs(logits - expected).max())
    path = "model/transformer/params/Block_0/wide/kernel"
    print(
        f"JAX on 4 x 2: largest difference {difference:.1e}, a device holds {shard(logits)} of the logits {logits.shape}"
    )
    print(f"{path}: {shard(loaded.params[path])} of {loaded.params[path].shape}")

    # What every sequence has from its third token on is told by the first two.
    accuracy = float(np.mean(np.argmax(logits, -1)[:, 1:] == test[:, 2:]))
    print(f"accuracy on new sequences: {accuracy:.1%}")
    is_cut = shard(loaded.params[path]) == (32, 64) and shard(logits) == (16, LENGTH, VOCABULARY // 2)
    return 0 if is_cut and difference < 1e-3 and history["loss"][-1] < history["loss"][0] else 1


def shard(array: jax.Array) -> tuple[int, ...]:
    return array.addressable_shards[0].data.shape


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=None, help="a folder to write to; a temporary one if not given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(arguments.epochs, arguments.out or Path(folder)))
