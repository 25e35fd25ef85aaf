"""What `jaxbridge.lower` and `jaxbridge.summary` say of some models, as a page of the documentation.

python benchmarks/stages.py        # writes docs/stages.md and docs/stages.svg; a minute on 8 virtual CPU devices
"""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import keras  # noqa: E402

import jaxbridge  # noqa: E402

MIB = 2**20
BLOCKS = (2, 4, 8, 16)
POLICIES = {
    "everything kept": None,
    "matrix products kept (dots_saveable)": jax.checkpoint_policies.dots_saveable,
    "nothing kept (nothing_saveable)": jax.checkpoint_policies.nothing_saveable,
}


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))))


def mean_over_time(inputs):
    return inputs.mean(axis=1)


def classifier() -> keras.Model:
    layers = [
        keras.Input((128,), dtype="int32"),
        keras.layers.Embedding(8000, 128, name="embedding"),
        jaxbridge.FlaxLayer(Attention(), name="attention"),
        jaxbridge.JaxLayer(mean_over_time, name="mean"),
        keras.layers.Dense(8000, name="logits"),
    ]
    return keras.Sequential(layers, name="classifier")


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1], name="down")(y), None


class Stack(nn.Module):
    blocks: int
    policy: Any = None

    @nn.compact
    def __call__(self, x):
        block = Block if self.policy is None else nn.remat(Block, policy=self.policy, prevent_cse=False)
        scanned = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.blocks)
        return scanned(name="blocks")(x, None)[0]


def rematerialization() -> dict[str, list[tuple[float, float]]]:
    """Returns by policy, for each number of blocks, MiB of temporary values and GFLOPs of a block."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, policy in POLICIES.items():
        for blocks in BLOCKS:
            layer = jaxbridge.FlaxLayer(Stack(blocks, policy), name="stack")
            lowered = jaxbridge.lower(layer, keras.KerasTensor((512, 256)), training=True, gradient=True)
            memory, cost = lowered.compile().memory_analysis(), lowered.cost_analysis()
            assert memory is not None and memory.temp_size_in_bytes is not None and cost is not None
            found.setdefault(name, []).append((memory.temp_size_in_bytes / MIB, cost["flops"] / 1e9))
    return found


def meshes() -> list[tuple[str, float, float, str]]:
    """Returns rows: the mesh, GFLOPs and MiB of arguments per device, and the collectives."""

    def parallel(sizes: tuple[int, int]) -> keras.distribution.ModelParallel:
        mesh = keras.distribution.DeviceMesh(sizes, ("data", "model"), keras.distribution.list_devices())
        layouts = keras.distribution.LayoutMap(mesh)
        layouts[".*/up/kernel"], layouts[".*/down/kernel"] = (None, None, "model"), (None, "model", None)
        return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="data")

    ways: dict[str, Any] = {
        "one device": None,
        "8 × data": keras.distribution.DataParallel(devices=keras.distribution.list_devices()),
        "2 × data, 4 × model": parallel((2, 4)),
        "8 × model": parallel((1, 8)),
    }
    rows = []
    for name, way in ways.items():
        keras.distribution.set_distribution(way)
        layer = jaxbridge.FlaxLayer(Stack(4), name="stack")
        compiled = jaxbridge.lower(layer, keras.KerasTensor((512, 256)), training=True, gradient=True).compile()
        memory, cost, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
        assert memory is not None and memory.argument_size_in_bytes and cost is not None and text is not None
        collectives = re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(", text)
        said = ", ".join(f"{collectives.count(kind)} {kind}" for kind in dict.fromkeys(collectives)) or "none"
        rows.append((name, cost["flops"] / 1e9, memory.argument_size_in_bytes / MIB, said))
    keras.distribution.set_distribution(None)
    return rows


def plot(found: dict[str, list[tuple[float, float]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for (name, values), marker in zip(found.items(), "osD", strict=True):
        axes.plot(BLOCKS, [mib for mib, _ in values], marker=marker, label=f"{name}: {values[0][1]:.2f} GFLOP a block")
    axes.set_xlabel("blocks")
    axes.set_ylabel("temporary values of a training step / MiB")
    axes.set_xticks(BLOCKS)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "jaxbridge"
    figure.savefig(file, metadata={"Date": None})


def large() -> str:
    """Returns what is said of a model that fits into no memory."""
    make = lambda: keras.Sequential([keras.Input((8192,)), keras.layers.Dense(100_000), keras.layers.Dense(92_000)])
    cost = jaxbridge.summary(make, batch_size=2).total
    assert cost.peak_memory is not None and cost.flops is not None
    return f"{cost.parameters:,} parameters, {cost.flops / 1e9:.1f} GFLOP, {cost.peak_memory / 2**30:.1f} GiB"


PAGE = """# What the compiler says

Written by `python benchmarks/stages.py`, with {versions}. `jaxbridge.lower` gives
what `jax.stages` gives, for bridge layers on both Keras backends and for any Keras layer or model on JAX;
`jaxbridge.summary` is a table of it per layer. Nothing is run and no weight gets a value, so a model need not fit into this
machine: of `Dense(100_000)` and `Dense(92_000)` on 8192 features

    jaxbridge.summary(make, batch_size=2).total

says {large}, in a process of less than 1 GiB.

```python
lowered = jaxbridge.lower(model, keras.KerasTensor((32, 128), "int32"), training=True, gradient=True)
lowered.as_text()  # StableHLO; "hlo" too
lowered.cost_analysis()["flops"]  # before the compiler optimizes
compiled = lowered.compile()
compiled.as_text()  # with its collectives, on a mesh
compiled.memory_analysis()  # bytes of arguments, outputs, temporary values
compiled.input_shardings  # by Keras path
```

On the command line, `jaxbridge lower my_models:build_model --summary`, with `--json` for programs.

## Where the FLOPs are

A model of native Keras layers, a Flax module and a plain function; `jaxbridge.summary(model, batch_size=32)`:

```text
{summary}
```

The attention block has {attention_parameters:.0%} of the parameters and {attention_flops:.0%} of the FLOPs. The embedding
has {embedding_parameters:.0%} of the parameters and next to no FLOPs: it costs bytes. FLOPs are counted before the compiler
optimizes, so that they are the sums that one does by hand (`2 * 32 * 128 * 8000 + 32 * 8000` for the logits); bytes and
memory are those of the compiled layer, after fusion. The last row is the model compiled as a whole: its bytes are fewer than
the rows' together where layers are fused.

## What a mesh changes

A training step of four blocks (`LayerNorm`, `Dense(1024)`, gelu, `Dense(256)`), batch 512, under `keras.distribution`:

| mesh | GFLOP per device | MiB of arguments per device | collectives in the program |
| --- | --- | --- | --- |
{meshes}

Shapes that go in are global ones; figures that come out are those of one device. Data parallelism divides the FLOPs and
keeps every weight on every device; splitting `up` by columns and `down` by rows divides both, and pays with collectives in
every block. `compiled.input_shardings` says where each variable went, by its path. The blocks are a loop, whose body is
counted and written once.

## What rematerialization saves

`nn.remat` around a block recomputes in the backward pass what it does not keep. `gradient=True` lowers the backward pass too:

![temporary values by number of blocks](stages.svg)

| blocks | {policies} |
| --- | {rules} |
{rematerialization}

MiB of temporary values, and GFLOP of one block with its backward pass. Keeping nothing makes memory nearly independent of
depth for {more:.0%} more FLOPs; keeping the matrix products costs {dots:.1%} more.

## What the figures are

- They are XLA's own. None stands where a platform gives none: `cost_analysis()` of a program that was lowered for another
  platform, or with unknown sizes, is None, and `compile()` says why it cannot.
- XLA counts in float32, so in seven digits. It counts the body of a loop (`jax.lax.scan`, `keras.layers.LSTM`) once,
  whatever its length, and nothing for what runs in a library (LAPACK behind `jnp.linalg` on CPU).
- The memory of `summary` is what is allocated: arguments, outputs and temporary values. `peak_memory_in_bytes` of
  `memory_analysis()` is XLA's estimate, which leaves out temporary values on CPU.
- A bridge layer is a JAX function on both Keras backends, and is lowered on both. Models and native Keras layers run without
  JAX on the TensorFlow backend: there `lower` and `summary` raise an error that says to set KERAS_BACKEND=jax. The command
  line sets it itself.
- For a mesh JAX must see its devices (XLA_FLAGS=--xla_force_host_platform_device_count=8 makes eight of a CPU).
"""


def main() -> None:
    remat, summary = rematerialization(), jaxbridge.summary(classifier, batch_size=32)
    rows = {row.layer: row for row in summary.rows}
    share = lambda layer, field: getattr(rows[layer], field) / getattr(summary.total, field)
    everything, dots, nothing = (values[0][1] for values in remat.values())
    lines = [
        f"| {blocks} | " + " | ".join(f"{values[i][0]:.0f} MiB, {values[i][1]:.2f}" for values in remat.values()) + " |"
        for i, blocks in enumerate(BLOCKS)
    ]
    packages = ("jax", "flax", "keras")
    page = PAGE.format(
        versions=", ".join(f"{name} {metadata.version(name)}" for name in packages) + " on CPU",
        large=large(),
        summary=summary,
        attention_parameters=share("attention", "parameters"),
        attention_flops=share("attention", "flops"),
        embedding_parameters=share("embedding", "parameters"),
        meshes="\n".join(f"| {name} | {flops:.2f} | {mib:.1f} | {said} |" for name, flops, mib, said in meshes()),
        policies=" | ".join(remat),
        rules=" | ".join("---" for _ in remat),
        rematerialization="\n".join(lines),
        more=nothing / everything - 1,
        dots=dots / everything - 1,
    )
    (ROOT / "docs" / "stages.md").write_text(page, encoding="utf-8")
    plot(remat, ROOT / "docs" / "stages.svg")


if __name__ == "__main__":
    main()
