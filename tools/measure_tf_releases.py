"""Measures what each TensorFlow release reads, and writes `jaxbridge/jax2tf/tf_releases.json`.

    python tools/measure_tf_releases.py                 # every release of RELEASES, a few minutes each
    python tools/measure_tf_releases.py 2.21.0          # only this one; the other rows are kept

Run in an environment with jaxbridge's JAX, which writes the probes. Each release is installed (tensorflow-cpu) into an
environment of its own and asked for its StableHLO version and calling convention; what it says nothing about is tried,
each probe in a process of its own, as some end it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _environments
import jax

#: Release -> the newest Python that has wheels of it.
RELEASES = {
    "2.17.0": "3.12",
    "2.17.1": "3.12",
    "2.18.0": "3.12",
    "2.18.1": "3.12",
    "2.19.0": "3.12",
    "2.19.1": "3.12",
    "2.20.0": "3.13",
    "2.21.0": "3.13",
}
TABLE = Path(__file__).resolve().parents[1] / "jaxbridge" / "jax2tf" / "tf_releases.json"

ASK = """
import json
import tensorflow as tf
from tensorflow.compiler.mlir.stablehlo import stablehlo
from tensorflow.compiler.tf2xla.python import xla
print(json.dumps({
    "tensorflow": tf.__version__,
    "stablehlo": stablehlo.get_current_version(),
    "calling_convention": xla.call_module_maximum_supported_version(),
}))
"""

# Runs the module in a file over two 4 x 4 matrices of ones, whose product is all 4.
TRY = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
path, convention, shardy = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shardy"
[product] = xla.call_module(
    [tf.ones((4, 4))] * 2, version=convention, module=open(path, "rb").read(), Tout=[tf.float32], Sout=[(4, 4)],
    platforms=["CPU"], function_list=[], has_token_input_output=False, disabled_checks=[],
    **({"use_shardy_partitioner": True} if shardy and convention >= 10 else {}),
)
np.testing.assert_array_equal(product, np.full((4, 4), 4.0))
"""

DOT = """
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]{}
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
"""
BF16 = """, algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32,
      lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false>"""
SHARDED = '    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<4x4xf32>\n'

#: Column of the table -> the module that is tried for it. The first proves that the way of trying works.
PROBES = {
    "plain": (DOT.format(""), "", "%0"),
    "shardy": (DOT.format("") + SHARDED, '  sdy.mesh @mesh = <["x"=1]>\n', "%1"),
    "dot_algorithms": (DOT.format(BF16), "", "%0"),
}


def module_text(body: str, before: str, result: str) -> str:
    return (
        f"module {{\n{before}  func.func public @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>) -> tensor<4x4xf32> {{"
        f"{body}    return {result} : tensor<4x4xf32>\n  }}\n}}\n"
    )


def measure(release: str, folder: Path) -> dict[str, Any]:
    python = _environments.make(folder / release, RELEASES[release], [f"tensorflow-cpu=={release}", "setuptools<80"])
    asked = _environments.run_quiet([python, "-c", ASK])
    if asked.returncode != 0:
        raise RuntimeError(f"TensorFlow {release} does not answer:\n{asked.stderr[-2000:]}")
    row = json.loads(asked.stdout.splitlines()[-1])
    tried = {name: runs(python, row, name, folder) for name in PROBES}
    if not tried.pop("plain"):
        raise RuntimeError(f"TensorFlow {release} does not run a plain matrix product: the probes are wrong.")
    return row | tried


def runs(python: Path, row: dict[str, Any], probe: str, folder: Path) -> bool:
    """Returns whether a probe runs and is right; what it printed goes to the terminal where it does not."""
    from jaxbridge.jax2tf import _jax_private

    path = folder / f"{probe}.mlirbc"
    try:
        path.write_bytes(_jax_private.serialize_module(module_text(*PROBES[probe]), row["stablehlo"]))
    except jax.errors.JaxRuntimeError:
        print(f"   {probe}: StableHLO {row['stablehlo']} has no form of it", flush=True)
        return False
    result = _environments.run_quiet([python, "-c", TRY, path, str(row["calling_convention"]), probe])
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["(nothing printed)"])[-1]
        print(f"   {probe}: exit code {result.returncode}: {last[:300]}", flush=True)
    return result.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help="default: all")
    options = parser.parse_args()
    rows = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    for release in options.releases:
        with tempfile.TemporaryDirectory() as folder:
            print(f"== {release}", flush=True)
            row = measure(release, Path(folder))
        rows[row.pop("tensorflow")] = row
        print(f"   {row}", flush=True)
        ordered = dict(sorted(rows.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
        TABLE.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
