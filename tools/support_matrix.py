"""Runs ten models in environments that hold every pair of versions, and writes the tables of `docs/support.md` and README.

    python tools/support_matrix.py                    # all, about 3 minutes each on 2 cores
    python tools/support_matrix.py --missing          # those that `docs/support.json` does not have yet
    python tools/support_matrix.py jax0.7-tf2.18      # by name
    python tools/support_matrix.py --table            # only writes the tables again

Needs uv. In each environment `_matrix_worker.py` converts, fits, exports and serves the models on both Keras backends.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _environments

ROOT = Path(__file__).resolve().parents[1]
RESULTS, TABLE, README = ROOT / "docs" / "support.json", ROOT / "docs" / "support.md", ROOT / "README.md"
BACKENDS = ("jax", "tensorflow")
BEGIN, END = "<!-- table: made by tools/support_matrix.py -->", "<!-- end of the table -->"

JAX = ("0.7.0", "0.8.2", "0.10.2", "0.12.0.1")
TENSORFLOW = ("2.18.1", "2.19.1", "2.20.0", "2.21.0")
KERAS = ("3.12.0", "3.15.1")
PYTHON = ("3.11", "3.12", "3.13")

#: Pairs that nobody can install: no wheels, or a package that says so.
IMPOSSIBLE = {("0.12.0.1", "3.11"), ("2.18.1", "3.13"), ("2.19.1", "3.13")}

#: TensorFlow 2.18 asks for ml-dtypes below 0.5 and JAX for 0.5 at least; TensorFlow 2.19 for numpy below 2.2. Where pip
#: refuses for such a reason, the environment is made in spite of it, and the table says so.
OVERRIDES = "ml-dtypes>=0.5\nnumpy>=2.0\n"


@dataclasses.dataclass(frozen=True)
class Environment:
    jax: str
    tensorflow: str
    keras: str
    python: str

    @property
    def name(self) -> str:
        short = lambda version: ".".join(version.split(".")[:2])
        return f"jax{short(self.jax)}-tf{short(self.tensorflow)}"

    def packages(self) -> list[str]:
        return [
            f"jax=={self.jax}",
            f"tensorflow-cpu=={self.tensorflow}",
            f"keras=={self.keras}",
            "flax>=0.11",
            "dm-haiku>=0.0.14",
            "setuptools<80",
        ]


# Every pair of two versions that can be installed together is in one of these (`tests/test_support_matrix.py`): JAX and
# TensorFlow alone have 16.
ENVIRONMENTS = [
    Environment("0.7.0", "2.18.1", "3.12.0", "3.11"),
    Environment("0.12.0.1", "2.21.0", "3.15.1", "3.13"),
    Environment("0.8.2", "2.19.1", "3.12.0", "3.11"),
    Environment("0.10.2", "2.20.0", "3.12.0", "3.13"),
    Environment("0.12.0.1", "2.18.1", "3.15.1", "3.12"),
    Environment("0.7.0", "2.21.0", "3.15.1", "3.11"),
    Environment("0.10.2", "2.19.1", "3.15.1", "3.12"),
    Environment("0.8.2", "2.20.0", "3.15.1", "3.11"),
    Environment("0.12.0.1", "2.19.1", "3.12.0", "3.12"),
    Environment("0.10.2", "2.21.0", "3.15.1", "3.12"),
    Environment("0.8.2", "2.21.0", "3.12.0", "3.13"),
    Environment("0.7.0", "2.20.0", "3.12.0", "3.13"),
    Environment("0.12.0.1", "2.20.0", "3.15.1", "3.12"),
    Environment("0.8.2", "2.18.1", "3.15.1", "3.12"),
    Environment("0.7.0", "2.19.1", "3.15.1", "3.12"),
    Environment("0.10.2", "2.18.1", "3.12.0", "3.11"),
]

VERSIONS = """
import json
from importlib import metadata
names = ("jax", "flax", "keras", "tensorflow-cpu", "numpy", "ml-dtypes")
print(json.dumps({name: metadata.version(name) for name in names}))
"""


def run(environment: Environment, folder: Path) -> dict[str, Any]:
    """Makes an environment and runs the models in it; returns the row of the results."""
    row: dict[str, Any] = {"python": environment.python, "date": time.strftime("%Y-%m-%d"), "overrides": False}
    try:
        python = _environments.make(folder / "venv", environment.python, environment.packages())
    except RuntimeError as refused:
        (folder / "overrides.txt").write_text(OVERRIDES)
        arguments = ["--override", str(folder / "overrides.txt")]
        print(f"   with overrides: {str(refused)[-300:]}", flush=True)
        row["overrides"] = True
        try:
            python = _environments.make(folder / "venv", environment.python, environment.packages(), arguments)
        except RuntimeError as error:
            return row | {"error": str(error)[-500:], "versions": {}, "backends": {}}
    row["versions"] = json.loads(_environments.run_quiet([python, "-c", VERSIONS]).stdout)
    started = {backend: start(python, backend, folder) for backend in BACKENDS}
    row["backends"] = {backend: finish(process) for backend, process in started.items()}
    return row


def start(python: Path, backend: str, folder: Path) -> subprocess.Popen[str]:
    (folder / backend).mkdir()
    quiet = {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [str(python), str(Path(__file__).with_name("_matrix_worker.py")), str(folder / backend)],
        stdout=subprocess.PIPE,
        stderr=(folder / f"{backend}.log").open("w"),
        text=True,
        env=os.environ | quiet,
        cwd=ROOT,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][7:]) if lines else {"(process)": {"started": f"ended with {process.returncode}"}}


# The table.


def cell(row: dict[str, Any], backend: str) -> str:
    models = row["backends"].get(backend)
    if not models:
        return "cannot be installed"
    failed = [name for name, steps in models.items() if any(steps.values())]
    return f"{len(models)} of {len(models)}" if not failed else f"{len(models) - len(failed)}; not {', '.join(failed)}"


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| Python | JAX | TensorFlow | Keras | flax | on JAX | on TensorFlow |", "| --- |" + " --- |" * 6]
    for environment in ENVIRONMENTS:
        row = rows.get(environment.name)
        flax = row["versions"].get("flax", "") if row else ""
        mark = " ¹" if row and row["overrides"] else ""
        cells = [cell(row, backend) for backend in BACKENDS] if row else ["not run"] * 2
        versions = [environment.python, environment.jax, environment.tensorflow + mark, environment.keras, flax]
        lines.append(f"| {' | '.join([*versions, *cells])} |")
    return "\n".join(lines)


def grid(rows: dict[str, dict[str, Any]]) -> str:
    """Returns JAX against TensorFlow: of all models on both backends, how many passed every step."""
    lines = [f"| JAX \\ TensorFlow | {' | '.join(TENSORFLOW)} |", "| --- |" + " --- |" * len(TENSORFLOW)]
    found = {(e.jax, e.tensorflow): rows[e.name]["backends"] for e in ENVIRONMENTS if e.name in rows}
    for jax in JAX:
        lines.append(f"| {jax} | {' | '.join(passed(found.get((jax, tensorflow))) for tensorflow in TENSORFLOW)} |")
    return "\n".join(lines)


def passed(backends: dict[str, Any] | None) -> str:
    if backends is None:
        return "not run"
    models = [steps for models in backends.values() for steps in models.values()]
    return f"{sum(not any(steps.values()) for steps in models)} of {len(models)}"


def write_tables(rows: dict[str, dict[str, Any]]) -> None:
    for file, text in ((TABLE, table(rows)), (README, grid(rows))):
        before, rest = file.read_text(encoding="utf-8").split(BEGIN)
        file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [environment.name for environment in ENVIRONMENTS]
    parser.add_argument("names", nargs="*", help=f"which environments: {', '.join(names)}")
    parser.add_argument("--missing", action="store_true", help="only those without a result")
    parser.add_argument("--table", action="store_true", help="run nothing, write the tables")
    parser.add_argument("--logs", type=Path, help="a folder for the logs of what fails")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no such environment: {', '.join(sorted(unknown))}")
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    wanted = [] if options.table else (options.names or names)
    for environment in ENVIRONMENTS:
        if environment.name not in wanted or (options.missing and environment.name in rows):
            continue
        print(f"== {environment.name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows[environment.name] = row = run(environment, Path(folder))
            if options.logs:
                for backend in BACKENDS:
                    log = Path(folder, f"{backend}.log")
                    text = log.read_text(errors="replace") if log.exists() else ""
                    (options.logs / f"{environment.name}-{backend}.log").write_text(text)
        print("   " + "; ".join(f"{backend}: {cell(row, backend)}" for backend in BACKENDS), flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        write_tables(rows)
    write_tables(rows)


if __name__ == "__main__":
    sys.exit(main())
