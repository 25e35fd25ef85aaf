"""The results of `python -m benchmarks.speed` as a page and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.speed.timing import quantity, ratio_text

PEERS = ("jaxbridge", "keras", "native", "plain JAX", "identity layer + compiled", "jax2tf", "orbax-export")
#: Rows of the plot: what a user waits for.
PLOTTED = (
    "eager call, inference",
    "train step, 6 x Dense(1024), jit_compile=auto",
    "train step, ViT, jit_compile=auto",
    "build and first train step, 64 equal blocks",
)


def write_page(documents: list[dict[str, Any]], folder: Path) -> None:
    """Writes `speed.md` and `speed.svg` from what `--json` wrote, a document per environment."""
    plot(documents[0], folder / "speed.svg")
    lines = [
        "# Measured speed",
        "",
        "Written by `python -m benchmarks.speed --page`. Figures are medians of alternating rounds; in brackets stands",
        "jaxbridge's figure divided by that of the peer, so below 1 jaxbridge is faster or smaller. `keras` is",
        "`keras.layers.FlaxLayer` around the same module, `native` a model of Keras' own layers, `plain JAX` a jitted",
        "training step written by hand. [How it is fast](how_it_is_fast.md) says where the differences come from.",
        "",
        "![jaxbridge beside its peers](speed.svg)",
    ]
    for document in documents:
        lines += ["", f"## {document['versions']}", "", f"{document['date']}, {document['machine']}.", ""]
        peers = [peer for peer in PEERS if any(peer in row for row in document["rows"].values())]
        others = [
            peer for peer in dict.fromkeys(p for row in document["rows"].values() for p in row) if peer not in peers
        ]
        columns = peers + others
        lines += [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for name, row in document["rows"].items():
            cells = [cell(name, row, peer) for peer in columns]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    (folder / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def cell(name: str, row: dict[str, Any], peer: str) -> str:
    if peer not in row:
        return ""
    return quantity(name, row[peer]) + ratio_text(row, peer)


def plot(document: dict[str, Any], file: Path) -> None:
    """Draws each peer's figure as a multiple of jaxbridge's, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = [(name, row) for name, row in document["rows"].items() if name.partition(": ")[2] in PLOTTED]
    peers = ("keras", "native", "plain JAX", "identity layer + compiled")
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(found) + 1.6))
    for index, peer in enumerate(peers):
        points = [
            (row[peer] / row["jaxbridge"], len(found) - position)
            for position, (_, row) in enumerate(found)
            if isinstance(row.get(peer), float) and isinstance(row.get("jaxbridge"), float)
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), label=peer, marker="osD^"[index], s=60)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks([len(found) - position for position in range(len(found))], [name for name, _ in found])
    axes.set_xlabel("time of the peer / time of jaxbridge\n(right of the line: jaxbridge is faster)")
    axes.legend(loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "jaxbridge"
    figure.savefig(file, metadata={"Date": None})
