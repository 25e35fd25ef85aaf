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
print("TF", ".".join(tf.__version__.split(".")[:2]), flush=True)
for stem in sys.argv[1:]:
    spec = json.load(open(stem + ".json"))
    print("RUN", stem, flush=True)
    try:
        outs = xla.call_module(
            [tf.constant(np.load(stem + ".npy"))], version=9, module=open(stem + ".bin", "rb").read(),
            Tout=[tf.as_dtype(d) for d in spec["dtypes"]], Sout=spec["shapes"], platforms=["CPU"], function_list=[],
            has_token_input_output=False, disabled_checks=[],
        )
        finite = all(np.isfinite(np.asarray(out, dtype=complex)).all() for out in outs)
        print("SAID", "runs" if finite else "runs, not finite", flush=True)
    except Exception as error:
        print("SAID refused:", str(error).replace(chr(10), " ")[:100], flush=True)
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
BARE_TARGETS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "LuDecomposition",
    "tpu_custom_call",
    "nobody_has_this",
)
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
        # Custom calls with the older JAX only (0.7); composites with a newer one.
        "mhlo.topk": (lambda a: lax.top_k(a, 2), False),
        "mhlo.erf": (lax.erf, False),
        "ApproxTopK": (lambda a: lax.approx_max_k(a, 2)[0], False),
        **(
            {"AllocateBuffer": (lambda a: lax.empty((4, 4), "float32") * 0 + a, False)} if hasattr(lax, "empty") else {}
        ),
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


def write(folder: Path) -> dict[str, str]:
    """Writes the modules with what is needed to run them, and returns their files and names."""
    import numpy as np

    names = {}
    for index, (name, text, outs) in enumerate(modules()):
        stem = str(folder / str(index))
        Path(f"{stem}.bin").write_bytes(serialized(text))
        spec = {"dtypes": [str(o.dtype) for o in outs], "shapes": [list(o.shape) for o in outs]}
        Path(f"{stem}.json").write_text(json.dumps(spec))
        np.save(f"{stem}.npy", np.random.default_rng(0).normal(size=(4, 4)).astype("float32"))
        names[stem] = name
    return names


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


def outcomes(python: str, names: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields release, module and what happened; a new process goes on behind a module that ended one."""
    left = list(names)
    while left:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        result = subprocess.run([python, "-c", RUN, *left], capture_output=True, text=True, env=environment)
        release, running = "", ""
        for key, _, value in (line.partition(" ") for line in result.stdout.splitlines()):
            if key == "TF":
                release = value
            elif key == "RUN":
                running = value
                left.remove(value)
            elif key == "SAID":
                yield release, names[running], value
                running = ""
        if running:
            yield release, names[running], f"ends the process (signal {-result.returncode})"
        elif left:
            raise RuntimeError(f"{python} did not run the modules: {result.stderr[-500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters with a TensorFlow each")
    pythons = parser.parse_args().pythons
    import jax

    jax.config.update("jax_export_calling_convention_version", 9)  # the newest that TensorFlow 2.17 reads
    with tempfile.TemporaryDirectory() as folder:
        names = write(Path(folder))
        for python in pythons:
            for release, name, said in outcomes(python, names):
                print(f"{release}  {name:48s}{said}", flush=True)


if __name__ == "__main__":
    main()
