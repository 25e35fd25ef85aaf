"""The rows of a contract, run with jaxbridge and with `keras.layers`, as a page of the documentation.

python benchmarks/layer_contract.py --contract layer --json a.json            # both Keras backends of this environment
python benchmarks/layer_contract.py --contract layer --merge a.json b.json    # writes docs/layer_contract.md

There are two: "layer" (tests/contract.py, docs/layer_contract.md) and "module" (tests/module_contract.py,
docs/module_contract.md).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "tensorflow")
LIBRARIES = ("jaxbridge", "keras.layers")
PACKAGES = ("jax", "flax", "dm-haiku", "equinox", "keras", "tensorflow-cpu", "tensorflow")


class Contract(NamedTuple):
    """A table of rows.

    Attributes:
        module: the Python module with its `ROWS`.
        page: the page in docs.
        title: its title.
        what: what the rows are.
        note: how to read the columns.
    """

    module: str
    page: Path
    title: str
    what: str
    note: str = ""


CONTRACTS = {
    "layer": Contract(
        "tests.contract",
        ROOT / "docs" / "layer_contract.md",
        "The layer contract",
        "Every way that Keras calls, builds, traces, saves and trains a layer",
    ),
    "module": Contract(
        "tests.module_contract",
        ROOT / "docs" / "module_contract.md",
        "The module contract",
        "What modules of every library have: streams, collections, flags, state",
        "`keras.layers` has a layer for linen and one for functions: it fails where a row uses another library, or an\n"
        "argument that it does not have.",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contract", choices=CONTRACTS, default="layer")
    parser.add_argument("--json", type=Path, help="run here, and write the outcomes to this file")
    parser.add_argument("--merge", type=Path, nargs="+", help="write the page from files of outcomes")
    parser.add_argument("--column", nargs=2, metavar=("LIBRARY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    contract = CONTRACTS[options.contract]
    if options.column:
        run_column(contract, options.column[0], Path(options.column[1]))
    elif options.merge:
        contract.page.write_text(
            page(contract, [json.loads(file.read_text()) for file in options.merge]), encoding="utf-8"
        )
    else:
        outcomes = {
            f"{library} on {backend}": outcomes_of(options.contract, library, backend)
            for library in LIBRARIES
            for backend in BACKENDS
        }
        document = {"versions": versions(), "outcomes": outcomes}
        options.json.write_text(json.dumps(document, indent=1))


def versions() -> str:
    found = {name: metadata.version(name) for name in PACKAGES if is_installed(name)}
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, " + ", ".join(map(" ".join, found.items()))


def is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def outcomes_of(contract: str, library: str, backend: str) -> dict[str, str]:
    """Runs a column in processes of its own, as a row may end the process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes")
        file.touch()
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, __file__, "--contract", contract, "--column", library, str(file)]
        while True:
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            if lines and lines[-1][1] == "started":
                lines[-1][1] = f"the process ended with code {result.returncode}"
                file.write_text("".join(json.dumps(line) + "\n" for line in lines))
                continue
            if result.returncode != 0:
                sys.exit(result.stderr)
            return dict(lines)


def run_column(contract: Contract, library: str, file: Path) -> None:
    """Appends (row, outcome) for every row that the file does not have yet."""
    import keras

    import jaxbridge
    from tests.contract import Api

    rows = importlib.import_module(contract.module).ROWS

    layers = jaxbridge if library == "jaxbridge" else keras.layers
    api = Api(layers.JaxLayer, layers.FlaxLayer, getattr(layers, "ModuleLayer", layers.FlaxLayer))
    done = dict(json.loads(line) for line in file.read_text().splitlines())
    kept = [[name, outcome] for name, outcome in done.items()]
    for name, row in rows.items():
        if name in done:
            continue
        file.write_text("".join(json.dumps(line) + "\n" for line in [*kept, [name, "started"]]))
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        try:
            row(api)
            outcome = "works"
        except (Exception, SystemError) as error:
            text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split()) or "a check failed"
            outcome = f"{type(error).__name__}: {text[:90]}"
        kept.append([name, outcome])
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))


def page(contract: Contract, documents: list[dict]) -> str:
    plain = lambda text: re.sub(r"\x1b\[\d*m?", "", text)
    lettered = list(zip("AB", documents, strict=False))
    columns = [(f"{backend}, {letter}", document, backend) for backend in BACKENDS for letter, document in lettered]
    heads = [f"{library}: {name}" for library in LIBRARIES for name, _, _ in columns]
    lines = [
        f"# {contract.title}",
        "",
        f"{contract.what}: the rows are checks in",
        f"`{contract.module.replace('.', '/')}.py`, which the tests run with jaxbridge. This page was written by",
        "`benchmarks/layer_contract.py`, which also ran them with the layers of the same names in `keras.layers`.",
        "`+` works, `-` does not.",
        *contract.note.splitlines(),
        "",
        *(f"* {letter}: {document['versions']}" for letter, document in lettered),
        "",
        f"| | {' | '.join(heads)} |",
        "|---|" + "---|" * (2 * len(columns)),
    ]
    failures: dict[str, list[str]] = {}
    for row in documents[0]["outcomes"]["jaxbridge on jax"]:
        cells = []
        for library in LIBRARIES:
            for name, document, backend in columns:
                outcome = document["outcomes"][f"{library} on {backend}"].get(row, "not run")
                cells.append("+" if outcome == "works" else "-")
                if outcome != "works":
                    failures.setdefault(row, []).append(f"{library}, {name}: {outcome}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += ["", "## What failed, and how", ""]
    for row, texts in failures.items():
        lines += [f"* {row}", *(f"    * {plain(text)}".replace("|", "\\|") for text in texts)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
