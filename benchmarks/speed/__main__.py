"""Times jaxbridge beside its peers and prints a table.

python -m benchmarks.speed                                       # everything, about half an hour on 2 cores
python -m benchmarks.speed --only "eager|train" --json a.json    # a part of it, and the figures in a file
python -m benchmarks.speed --page a.json b.json                  # writes docs/speed.md and its plot
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import ROOT, in_process, quantity, ratio_text

BACKENDS = ("jax", "tensorflow")
BLOCKS = (1, 4, 16, 64)
PACKAGES = ("jax", "flax", "keras", "tensorflow", "tensorflow-cpu", "orbax-export", "numpy")
MODELS = ("small MLP", "6 x Dense(1024)", "ViT", "ResNet-like CNN")

Row = dict[str, Any]


def rows(rounds: int) -> dict[str, Callable[[], Row]]:
    """Returns what is measured: name -> function that gives seconds (or bytes) per peer."""
    found: dict[str, Callable[[], Row]] = {}

    def add(name: str, backend: str, *arguments: str) -> None:
        found[name] = lambda: in_process(backend, *arguments)

    for backend in BACKENDS:
        for mode in ("inference", "training"):
            add(f"{backend}: eager call, {mode}", backend, "eager", mode, str(rounds))
        for what in ("fit", "predict"):
            add(f"{backend}: {what}, small MLP, 50 batches", backend, "loop", what, str(rounds))
        for model in MODELS:
            for jit in ("auto", "True", "False") if backend == "tensorflow" else ("auto",):
                text = f"{backend}: train step, {model}, jit_compile={jit}"
                add(text, backend, "steps", model, jit, str(rounds))
        add(f"{backend}: train step, Dense(1024) behind a frozen 6 x Dense(1024)", backend, "head", str(rounds))
        for name in ("64 blocks", "transformer"):
            add(
                f"{backend}: train step, {name}, a layer per block or one around all",
                backend,
                "fused",
                name,
                str(rounds),
            )
        for count in BLOCKS:
            text = f"{backend}: build and first train step, {count} equal blocks"
            found[text] = lambda b=backend, n=count: first_steps(b, n, max(1, rounds // 5))
        found[f"{backend}: peak memory of a train step, 6 x Dense(1024)"] = lambda b=backend: {
            peer: in_process(b, "memory", peer) for peer in ("jaxbridge", "keras", "native", "plain JAX")
        }
        found[f"{backend}: export and serving of the ViT"] = lambda b=backend: exports(b, rounds)
    return found


def first_steps(backend: str, blocks: int, rounds: int) -> Row:
    times: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for peer in ("jaxbridge", "keras", "native"):
            times.setdefault(peer, []).append(in_process(backend, "first_step", peer, str(blocks)))
    return {peer: _median(found) for peer, found in times.items()}


def _median(found: list[Any]) -> Any:
    numbers = [value for value in found if isinstance(value, float)]
    return statistics.median(numbers) if numbers else found[0]


def exports(backend: str, rounds: int) -> dict[str, Row]:
    """Returns seconds to export, bytes written and latencies of serving, each by peer."""
    peers = ["jaxbridge", "keras", *(["jax2tf", "orbax-export"] if backend == "jax" else [])]
    with tempfile.TemporaryDirectory() as folder:
        folders = {peer: str(Path(folder, peer)) for peer in peers}
        made = {peer: in_process(backend, "export", peer, folders[peer]) for peer in peers}
        written = {peer: path for peer, path in folders.items() if isinstance(made[peer], dict)}
        latencies = {
            f"served latency, batch {batch}": in_process(
                "tensorflow", "served", json.dumps(written), str(batch), str(rounds)
            )
            for batch in (1, 64)
        }
    pick = lambda key: {peer: value[key] if isinstance(value, dict) else value for peer, value in made.items()}
    return {"seconds": pick("seconds"), "bytes": pick("bytes"), **latencies}


def measured(only: str, rounds: int, file: Path | None) -> dict[str, Row]:
    """Measures and prints the rows that match `only`; the file has those that are done, should the run be stopped."""
    results: dict[str, Row] = {}
    for name, measure in rows(rounds).items():
        if not re.search(only, name):
            continue
        found = measure()
        nested = isinstance(found, dict) and all(isinstance(value, dict) for value in found.values())
        parts = {f"{name}: {part}": row for part, row in found.items()} if nested else {name: found}
        for part, row in parts.items():
            results[part] = row if isinstance(row, dict) else {"error": row}
            print(line_of(part, results[part]), flush=True)
        if file:
            file.write_text(json.dumps({**environment(), "rows": results}, indent=1))
    return results


def line_of(name: str, row: Row) -> str:
    """Returns a row of the table: our figure, and each peer's with our ratio to it."""
    cells = [f"{peer}: {quantity(name, value)}{ratio_text(row, peer)}" for peer, value in row.items()]
    return f"| {name} | {' | '.join(cells)} |"


def environment() -> dict[str, str]:
    installed = {d.metadata["Name"].lower().replace("_", "-") for d in metadata.distributions()}
    processor = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES if name in installed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression: the rows to measure")
    parser.add_argument("--rounds", type=int, default=15, help="alternating rounds per row (default 15)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--page", type=Path, nargs="+", help="write docs/speed.md and its plot from such files")
    options = parser.parse_args()
    if options.page:
        from benchmarks.speed.page import write_page

        write_page([json.loads(file.read_text()) for file in options.page], ROOT / "docs")
        return
    if not measured(options.only, options.rounds, options.json):
        sys.exit(f"No row matches {options.only!r}.")


if __name__ == "__main__":
    main()
