"""Measures which custom calls a TensorFlow runs on CPU: the CPU column of `jaxbridge/jax2tf/audit.py`.

A module per custom call, written by the JAX of this environment, is run by a process of its own in each TensorFlow that is
named, as some end the process instead of raising. Only TensorFlow is needed there.

python tools/measure_custom_calls.py                                     # the TensorFlow of this environment
python tools/measure_custom_calls.py tf-2.18/bin/python tf-2.19/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RUN = """
import json, sys
import numpy as np, tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla  # the op has no public name
spec = json.load(open(sys.argv[1] + ".json"))
print("TF", ".".join(tf.__version__.split(".")[:2]), flush=True)
args = [tf.constant(np.load(f"{sys.argv[1]}.{i}.npy")) for i in range(spec["args"])]
outs = xla.call_module(
    args, version=9, module=open(sys.argv[1] + ".bin", "rb").read(), Tout=[tf.as_dtype(d) for d in spec["dtypes"]],
    Sout=spec["shapes"], platforms=["CPU"], function_list=[], has_token_input_output=False,
    disabled_checks=[],
)
print("RAN", *[bool(np.isfinite(np.asarray(o, dtype=complex)).all()) for o in outs], flush=True)
"""

#: A custom call that no JAX function writes on CPU: the text of a module.
BARE = """
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.custom_call @TARGET(%arg0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}
"""
BARE_TARGETS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LuDecomposition", "tpu_custom_call", "nobody_has_this")
#: StableHLO versions to write, the first that has what a module needs: TensorFlow 2.17 reads the first, 2.18 the second.
VERSIONS = ("1.1.0", "1.7.3", "1.13.0")


def functions() -> dict[str, tuple[Callable[..., Any], bool]]:
    """Returns functions of a 4x4 matrix by name, and whether the portable rules are used."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def algorithm(preset: str) -> Callable[..., Any]:
        return lambda a: lax.dot(a, a, precision=getattr(lax.DotAlgorithmPreset, preset))

    return {
        "Eigh": (lambda a: jnp.linalg.eigh(a + a.T)[0], True),
        "Qr, ProductOfElementaryHouseholderReflectors": (lambda a: jnp.linalg.qr(a), True),
        "portable svd": (lambda a: jnp.linalg.svd(a), True),
        "portable solve": (lambda a: jnp.linalg.solve(a, a), True),
        "ApproxTopK": (lambda a: lax.approx_max_k(a, 2)[0], False),
        "AllocateBuffer": (lambda a: lax.empty((4, 4), "float32") * 0 + a, False),
        "lapack_*getrf_ffi": (lambda a: jax.scipy.linalg.lu_factor(a)[0], False),
        "lapack_*potrf_ffi": (lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(4)), False),
        "lapack_*syevd_ffi": (lambda a: jnp.linalg.eigh(a + a.T)[0], False),
        "lapack_*geev_ffi": (lambda a: jnp.linalg.eig(a)[0].real, False),
        "lapack_*geqrf_ffi": (lambda a: jnp.linalg.qr(a, mode="r"), False),
        "lapack_*gesdd_ffi": (lambda a: jnp.linalg.svd(a, compute_uv=False), False),
        "lapack_*trsm_ffi": (lambda a: jax.scipy.linalg.solve_triangular(a, a), False),
        "lapack_*gehrd_ffi": (lambda a: lax.linalg.hessenberg(a)[0], False),
        "lapack_*gees_ffi": (lambda a: jax.scipy.linalg.schur(a)[0], False),
        "dot algorithm F32_F32_F32": (algorithm("F32_F32_F32"), False),
        "dot algorithm BF16_BF16_F32": (algorithm("BF16_BF16_F32"), False),
        "dot algorithm BF16_BF16_F32_X3": (algorithm("BF16_BF16_F32_X3"), False),
    }


def modules() -> Iterator[tuple[str, str, list[Any]]]:
    """Yields name, text and results (shape and dtype) of each module."""
    import jax
    import jax.numpy as jnp

    from jaxbridge.jax2tf import _jax_private
    from jaxbridge.jax2tf.portable import _portable_rules

    struct = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    for target in BARE_TARGETS:
        yield target, BARE.replace("TARGET", target), [struct]
    for name, (fn, portable) in functions().items():
        rules = _portable_rules() if portable else []
        exported = _jax_private.export_with_rules(jax.jit(fn), [struct], ("cpu",), (), rules)
        yield name, _jax_private.portable_module(exported.mlir_module()), list(exported.out_avals)


def write(folder: Path) -> list[tuple[str, Path]]:
    """Writes the modules with what is needed to run them, and returns their names and files."""
    import numpy as np

    from jaxbridge.jax2tf import _jax_private

    written = []
    for index, (name, text, outs) in enumerate(modules()):
        stem = folder / str(index)
        stem.with_suffix(".bin").write_bytes(serialized(text))
        spec = {"args": 1, "dtypes": [str(o.dtype) for o in outs], "shapes": [list(o.shape) for o in outs]}
        stem.with_suffix(".json").write_text(json.dumps(spec))
        np.save(f"{stem}.0.npy", np.random.default_rng(0).normal(size=(4, 4)).astype("float32"))
        written.append((name, stem))
    return written


def serialized(text: str) -> bytes:
    """Returns a module in the oldest version that can hold it."""
    from jaxbridge.jax2tf import _jax_private

    text = re.sub(r"result_accuracy = #stablehlo[^>]*>+,? ?", "", text)
    for version in VERSIONS:
        try:
            return _jax_private.serialize_module(text, version)
        except Exception as error:  # JaxRuntimeError: an operation is newer
            failure = error
    raise failure


def outcome(python: str, stem: Path) -> tuple[str, str]:
    """Runs a module with a TensorFlow and returns its release and what happened."""
    result = subprocess.run(
        [python, "-c", RUN, str(stem)],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
    said = dict(line.split(" ", 1) for line in result.stdout.splitlines() if line.startswith(("TF ", "RAN ")))
    release = said.get("TF", python)
    if "RAN" in said:
        return release, "runs" if "False" not in said["RAN"] else "runs, not finite"
    if result.returncode < 0:
        return release, f"ends the process (signal {-result.returncode})"
    last = [line for line in result.stderr.splitlines() if "Error" in line]
    return release, f"refused: {last[-1][:100] if last else result.stderr[-100:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters with a TensorFlow each")
    pythons = parser.parse_args().pythons
    import jax

    jax.config.update("jax_export_calling_convention_version", 9)  # the newest that TensorFlow 2.17 reads
    with tempfile.TemporaryDirectory() as folder:
        for name, stem in write(Path(folder)):
            for python in pythons:
                print(f"{name:48s}", *outcome(python, stem), flush=True)


if __name__ == "__main__":
    main()
