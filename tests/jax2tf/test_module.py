"""What is inside the op: platforms, version, no debug locations."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from jaxbridge.errors import ConversionError, SignatureError
from jaxbridge.jax2tf import _jax_private, _tf_private
from jaxbridge.jax2tf.stablehlo import parse_version
from jaxbridge.jax2tf.targets import resolve

SPECS = [tf.TensorSpec((3, 4)), tf.TensorSpec((None, 3))]


def function(w, x):
    return jnp.tanh(x @ w)


def ops(under_tape: bool = False, **options: Any) -> list[Any]:
    """The XlaCallModule ops of the graph of a converted function, with its gradient if asked."""
    converted = jax2tf.convert(function, polymorphic_shapes=[None, "b, 3"], **options)

    def run(w, x):
        with tf.GradientTape() as tape:
            if under_tape:
                tape.watch(w)
            y = converted(w, x)
        return tape.gradient(y, w) if under_tape else y

    graph = tf.function(run, autograph=False).get_concrete_function(*SPECS).graph
    found = graph.as_graph_def()
    return [
        n for f in (found.node, *(g.node_def for g in found.library.function)) for n in f if n.op == "XlaCallModule"
    ]


@pytest.mark.parametrize("platforms", [("cpu",), ("cuda",), ("cpu", "cuda", "tpu", "rocm")])
@pytest.mark.parametrize("under_tape", [False, True])
def test_platforms(platforms: tuple[str, ...], under_tape: bool):
    """Lowered without owning the devices."""
    found = ops(under_tape, native_serialization_platforms=platforms)
    assert len(found) == (3 if under_tape else 1)  # the gradient that is wanted, and the other one, are an op each
    for op in found:
        assert [p.decode() for p in op.attr["platforms"].list.s] == [p.upper() for p in platforms]


def test_runs_where_cpu_is_one_of_the_platforms():
    converted = jax2tf.convert(jnp.sin, native_serialization_platforms=("cpu", "cuda", "tpu", "rocm"))
    assert converted(0.0) == 0


@pytest.mark.parametrize("platforms", [("gpu",), ("cpu", "TPU"), "cpu"])
def test_unknown_platform(platforms: Any):
    with pytest.raises(SignatureError, match=r"must be a sequence out of \('cpu', 'cuda', 'rocm', 'tpu'\), with"):
        jax2tf.convert(jnp.sin, native_serialization_platforms=platforms)


def version_of(module: bytes) -> str:
    found = re.search(rb"StableHLO_v(\d+\.\d+\.\d+)", module)
    assert found, module[:40]
    return found[1].decode()


@pytest.mark.parametrize("version", ["1.7.0", "1.13.0"])
@pytest.mark.parametrize("under_tape", [False, True])
def test_stablehlo_version(version: str, under_tape: bool):
    for op in ops(under_tape, stablehlo_version=version):
        assert version_of(op.attr["module"].s) == version


def test_default_version_is_one_that_both_know():
    version = resolve(None).stablehlo
    assert parse_version(version) <= parse_version(_tf_private.read_version())
    assert parse_version(version) <= parse_version(_jax_private.written_version())
    assert version_of(ops()[0].attr["module"].s) == version


UNWRITABLE = {"new": "like '1.13.0' .*, got 'new'", "1.13": "like", "99.0.0": "is outside", "0.1.0": "is outside"}


@pytest.mark.parametrize(("version", "message"), list(UNWRITABLE.items()))
def test_version_that_cannot_be_written(version: str, message: str):
    with pytest.raises(ConversionError, match=message):
        jax2tf.convert(jnp.sin, stablehlo_version=version)(0.0)


@pytest.mark.parametrize("under_tape", [False, True])
def test_no_debug_locations(under_tape: bool):
    for op in ops(under_tape):
        module = op.attr["module"].s
        assert Path(__file__).name.encode() not in module
        # A lone "/" may be a byte of the encoding.
        assert re.search(rb"/[\w.-]{2,}/|\w\.py\b", module) is None
