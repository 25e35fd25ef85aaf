"""What the tests of `jaxbridge.jax2tf` share."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from tests.jax2tf.cases import Case

ROOT = Path(__file__).resolve().parents[2]

# XLA compiles the same StableHLO in TensorFlow and in JAX, but with other fusions: a few units in the last place of
# float32 per op, over sums of some tens of terms.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
# Derivatives of order n are sums of products of n times as many terms.
GRADIENT_TOLERANCE = {1: {"rtol": 1e-4, "atol": 1e-5}, 2: {"rtol": 2e-4, "atol": 5e-5}, 3: {"rtol": 1e-3, "atol": 2e-4}}


def polymorphic(case: Case) -> list[str]:
    return [f"({text}{',' if text and ',' not in text else ''})" for text in case.shapes]


def as_numpy(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array


def assert_same(got: Any, want: Any, **tolerance: float) -> None:
    """Asserts equal structures, shapes, dtypes and values; floats within the tolerance, the rest exactly."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).shape == np.asarray(other).shape
        exact = not jnp.issubdtype(np.asarray(other).dtype, jnp.inexact)
        np.testing.assert_allclose(as_numpy(one), as_numpy(other), **({"rtol": 0} if exact else tolerance or TOLERANCE))


def concrete(fn: Any, case: Case, *, known_batch: bool, **options: Any) -> Any:
    """Returns `fn` as a `tf.function` with a signature: with or without the size of the batch."""
    specs = []
    for index, text in enumerate(case.shapes):
        sizes = [(3 if known_batch else None) if size == "b" else int(size) for size in text.split(",") if size]
        specs.append(tf.TensorSpec(sizes, case.dtypes[index] if case.dtypes else "float32"))
    return tf.function(fn, input_signature=specs, autograph=False, **options)


def run_python(script: str, *arguments: Any, without: tuple[str, ...] = (), **environment: str) -> str:
    """Runs a script in a fresh process and returns what it prints; importing a package out of `without` raises there."""
    blocker = f"""
        import sys, importlib.abc
        class Blocker(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {without!r}:
                    raise ModuleNotFoundError("No module named " + name, name=name)
        sys.meta_path.insert(0, Blocker())
    """
    source = textwrap.dedent(blocker) + textwrap.dedent(script)
    result = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
