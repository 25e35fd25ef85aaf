"""Writes docs/sharding_matrix.md: every way to annotate, on both backends, through every exporter, on every mesh.

    python tools/sharding_matrix.py            # some minutes

Each cell is what was found by the checks of `tests/export/test_carry.py`, which fail where a cell would be wrong. With
`--rows FILE` it writes the rows of the Keras backend in use, which the program without arguments puts together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "tensorflow")
MESHES = ("2 x 4", "4 x 2", "1 x 1")

HEAD = """# What is carried, and what JAX makes of it

Written by `python tools/sharding_matrix.py` with {versions}; the slow test `tests/export/test_carry.py` holds it true.

The network is `tanh(x @ kernel_1) @ kernel_2` with kernels of shape (4, 16) and (16, 8) and a batch of 8, annotated for
the mesh `{{"data": 2, "model": 4}}`, and written by a process with one device. "In the graph" is the number of
constraints in the op of each exporter's SavedModel: `export_saved_model`, Keras' `model.export`, and that one loaded
and saved again; the record on the op was the same in all. The other columns are what `load_jax` gave in a process with
8 devices, on the mesh that the column names: what one device holds of the two kernels, forward and gradient equal to
the plain network's, with an `all-reduce` in the compiled program where `model` is larger than 1. "DTensor" is what one
device holds of `dtensor_variables` on 2 x 4.

| annotation | backend | in the graph | {meshes} | DTensor |
| --- | --- | --- | {lines} | --- |
"""


def rows() -> list[list[str]]:
    """Returns the rows of the backend in use, once every check has passed."""
    sys.path.insert(0, str(ROOT))
    import keras

    from tests.export import test_carry as carry

    cases = [case for case in carry.CASES if case.annotated]
    with tempfile.TemporaryDirectory() as folder:
        results = carry.results_of([case.name for case in cases], Path(folder))
    found = []
    for case in cases:
        _, _, result = results[case.name]
        carry.check_carried(case, result)
        carry.check_runs(case, result)
        counts = [len(result[e]["graph"]["constraints"][0]) for e in ("ours", "keras", "keras again")]
        held = {name.removesuffix(":0"): shape for name, shape in result["dtensors"]["shards"].items()}
        shards = [held[f"m/net/{path}"] for path in case.kernels]
        cells = [_shown(row["kernels"]) for row in result["meshes"]]
        found.append([case.name, keras.config.backend(), ", ".join(map(str, counts)), *cells, _shown(shards)])
    return found


def _shown(shapes: list[list[int]]) -> str:
    return ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)


def main() -> None:
    found: dict[str, list[list[str]]] = {}
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.json")
            environment: dict[str, Any] = {**os.environ, "KERAS_BACKEND": backend}
            subprocess.run([sys.executable, __file__, "--rows", str(file)], env=environment, cwd=ROOT, check=True)
            found[backend] = json.loads(file.read_text())
    ordered = [row for pair in zip(*found.values(), strict=True) for row in pair]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "flax", "keras", "equinox"))
    lines = " | ".join("---" for _ in MESHES)
    head = HEAD.format(versions=versions, meshes=" | ".join(MESHES), lines=lines)
    table = "".join(f"| {' | '.join(row)} |\n" for row in ordered)
    (ROOT / "docs" / "sharding_matrix.md").write_text(head + table, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rows"]:
        Path(sys.argv[2]).write_text(json.dumps(rows()))
    else:
        main()
