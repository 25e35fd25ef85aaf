"""How close served files come to jitted JAX, as a page of the documentation.

python benchmarks/numerics.py --json a.json            # in this environment
python benchmarks/numerics.py --merge a.json b.json    # writes docs/numerics.md
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "numerics.md"
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="run here, and write the differences to this file")
    parser.add_argument("--merge", type=Path, nargs="+", help="write the page from files of differences")
    options = parser.parse_args()
    if options.merge:
        PAGE.write_text(page([json.loads(file.read_text()) for file in options.merge]), encoding="utf-8")
    else:
        options.json.write_text(json.dumps({"versions": versions(), "differences": measured()}, indent=1))


def versions() -> str:
    found = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "tensorflow-cpu"))
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, {found}"


def measured() -> dict[str, float]:
    """Returns the difference of each row, served by a process without JAX."""
    import jax
    import numpy as np
    import tensorflow as tf

    from jaxbridge import jax2tf
    from tests.jax2tf import linear_algebra_cases as linear_algebra
    from tests.jax2tf import numerics_cases as numerics
    from tests.jax2tf.helpers import run_python

    functions = {name: (numerics.in_dtype(row), numerics.argument(row)) for name, row in numerics.ROWS.items()}
    functions |= {name: (row.fn, linear_algebra.matrices(3)) for name, row in linear_algebra.ROWS.items()}
    module = tf.Module()
    for name, (fn, x) in functions.items():
        spec = [tf.TensorSpec(x.shape)]
        setattr(module, name, tf.function(jax2tf.convert(fn), input_signature=spec, autograph=False))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, folder / "saved", options=options)
        np.savez(folder / "given.npz", **{name: x for name, (_, x) in functions.items()})
        run_python(numerics.SERVE, folder, "gradients", without=("jax", "jaxlib", "flax", "jaxbridge"))
        outputs = dict(np.load(folder / "outputs.npz"))
    found = {}
    for name, (fn, x) in functions.items():
        wants = enumerate(jax.tree.leaves(jax.jit(fn)(x)))
        found[name] = max(linear_algebra.difference(outputs[f"{name}/{index}"], want) for index, want in wants)
        if name in linear_algebra.ROWS and linear_algebra.ROWS[name].gradients is not None:
            want = jax.jit(jax.grad(lambda a, fn=fn: linear_algebra.loss(fn(a))))(x)
            found[f"{name}/gradient"] = linear_algebra.difference(outputs[f"{name}/gradient"], want)
    return found


INTRODUCTION = """# Numerics

What a SavedModel gives, in a TensorFlow process without JAX, beside the same function under `jax.jit`, on CPU: the largest
difference relative to the largest value. This page was written by `benchmarks/numerics.py`; tests hold every row to its
tolerance (`tests/jax2tf/test_numerics.py`, `tests/jax2tf/test_linear_algebra.py`).

"""

LINEAR_ALGEBRA = """
## Linear algebra

JAX runs LAPACK; TensorFlow, which does not have it, runs portable rules (JAX's own for other platforms, and a pivoting
`tridiagonal_solve` of this package). The JAX backend keeps LAPACK while it trains and predicts. Decompositions are unique up
to signs, so `Q`, eigenvectors and singular vectors may have other signs than LAPACK gives them. Matrices are float32, 4 × 4,
well conditioned; rounding grows with the condition number. Any number of leading axes works, and the first may be unknown;
the last two need fixed sizes. `eig`, `schur`, `hessenberg` and pivoted `qr` have no portable rule, and an error says so.

"""

TYPES = """
## 64-bit types

With `jax_enable_x64` they are kept. Without it arguments are narrowed to 32 bits, as JAX does, and a converted function warns
of it once. Python numbers are narrowed in silence.

## Callbacks and effects

| in the function | in TensorFlow |
| --- | --- |
| `jax.debug.print`, `jax.debug.callback` | left out, with a warning; the results are the same |
| the same with `ordered=True` | error |
| `jax.pure_callback`, `io_callback` | error |
| `jax.experimental.jax2tf.call_tf(f)` | `f` is compiled into the module, with its gradient |
| `call_tf(f, call_tf_graph=True)` | error |
| `jax.shard_map` over several devices | error; over one device it works |
| a custom call that TensorFlow does not have (`jax.ffi`, Pallas) | error |

Each error comes at conversion, names the primitive and the line of your code, and says what to write. On Keras' JAX backend
all of them run as they are, until the model is exported.
"""


def page(runs: list[dict]) -> str:
    from tests.jax2tf import linear_algebra_cases as linear_algebra
    from tests.jax2tf import numerics_cases as numerics

    letters = [chr(ord("A") + index) for index in range(len(runs))]
    shown = lambda name: " | ".join(f"{run['differences'][name]:.0e}" for run in runs)
    lines = [f"* {letter}: {run['versions']}" for letter, run in zip(letters, runs, strict=True)]
    heads = " | ".join(letters)
    lines += ["", "## Precision", "", f"| | dtype | tolerance | {heads} |", "| --- " * (3 + len(runs)) + "|"]
    for name, row in numerics.ROWS.items():
        lines.append(f"| {row.what} | {row.dtype} | {row.tolerance:.0e} | {shown(name)} |")
    more = " | ".join(f"gradient, {letter}" for letter in letters)
    table = [f"| | tolerance | {heads} | tolerance of the gradient | {more} |", "| --- " * (3 + 2 * len(runs)) + "|"]
    for name, row in linear_algebra.ROWS.items():
        has = row.gradients is not None
        gradient = f"{row.gradients:.0e} | {shown(f'{name}/gradient')}" if has else "– |" * len(runs) + " –"
        table.append(f"| `{name}` | {row.values:.0e} | {shown(name)} | {gradient} |")
    return INTRODUCTION + "\n".join(lines) + "\n" + LINEAR_ALGEBRA + "\n".join(table) + "\n" + TYPES


if __name__ == "__main__":
    main()
