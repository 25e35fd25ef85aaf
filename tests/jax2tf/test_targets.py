"""Modules written for an older TensorFlow: what is in them, and what is refused."""

import contextlib
import itertools
import threading
import warnings
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jaxbridge import jax2tf
from jaxbridge.errors import ConversionError
from jaxbridge.jax2tf import _jax_private, _tf_private
from jaxbridge.jax2tf.stablehlo import parse_version
from jaxbridge.jax2tf.targets import installed, releases, resolve
from tests.jax2tf.test_module import version_of

X = np.float32([[0.5, -1.0], [2.0, 0.1]])


def sharded(x):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None))
    return lax.with_sharding_constraint(jnp.tanh(x) @ jnp.ones((2, 2)), spec) + 1


def accurate(x):
    return lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST)


def dot_algorithm(x):
    return lax.dot(x, x, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)


def four_bits(x):
    return x.astype(jnp.float4_e2m1fn).astype(jnp.float32)


def op_of(fn: Any, target: str | None, shapes: Any = None) -> Any:
    converted = jax2tf.convert(fn, stablehlo_version=target, polymorphic_shapes=shapes)
    graph = tf.function(converted, autograph=False).get_concrete_function(tf.TensorSpec((None, 2))).graph
    [op] = [node for node in graph.as_graph_def().node if node.op == "XlaCallModule"]
    return op


def test_the_table_is_ordered_and_holds_the_installed_release():
    rows = list(releases().values())
    assert len(rows) >= 8
    for older, newer in itertools.pairwise(rows):
        assert parse_version(older.stablehlo) <= parse_version(newer.stablehlo)
        assert older.calling_convention <= newer.calling_convention
    row = releases()[tf.__version__]
    assert (row.stablehlo, row.calling_convention) == (
        _tf_private.read_version(),
        _tf_private.maximum_calling_convention(),
    )


WRITTEN = {
    None: lambda: (installed().stablehlo, installed().calling_convention),
    "tensorflow==2.18": lambda: ("1.7.3", 9),
    "tensorflow-cpu==2.19.1": lambda: ("1.9.1", 9),
    "tensorflow==2.19.7": lambda: ("1.9.1", 9),  # the measured patch release before it
    "1.8.0": lambda: ("1.8.0", 9),  # the oldest TensorFlow that reads it is 2.19
    "1.7.3": lambda: ("1.7.3", 9),
    "1.13.0": lambda: ("1.13.0", 10),
}


@pytest.mark.parametrize("target", list(WRITTEN))
def test_version_and_convention_of_the_op(target: str | None):
    op = op_of(jnp.tanh, target, ["b, 2"])
    assert (version_of(op.attr["module"].s), op.attr["version"].i) == WRITTEN[target]()


FUNCTIONS = {
    "composites": lambda x: lax.top_k(jax.nn.gelu(jnp.sinh(x), approximate=False), 1)[0],
    "accurate": accurate,
    "sharded": sharded,
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_what_an_older_reader_lacks_is_left_out(name: str):
    function = FUNCTIONS[name]
    converted = jax2tf.convert(function, stablehlo_version="tensorflow==2.18", polymorphic_shapes=["b, 2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(converted(X), function(X), rtol=1e-5, atol=1e-6)
        module = op_of(function, "tensorflow==2.18").attr["module"].s
    assert b"sdy" not in module and b"composite" not in module


@pytest.mark.parametrize(("target", "stays"), [("tensorflow==2.18", False), ("tensorflow==2.19", True)])
def test_accuracy_stays_where_it_can_be_read(target: str, stays: bool):
    def plain(x):
        return lax.exp(x)

    plain.__name__ = accurate.__name__  # which is in the module
    written = [op_of(function, target).attr["module"].s for function in (accurate, plain)]
    assert (written[0] != written[1]) == stays


@pytest.mark.parametrize(("target", "warns"), [("tensorflow==2.18", True), (None, False)])
def test_left_out_constraints_are_said(target: str | None, warns: bool):
    context = pytest.warns(UserWarning, match="sharding constraints .* are left out: tensorflow==2.18 cannot read")
    if not warns:
        context = warnings.catch_warnings()
    with context:
        warnings.simplefilter("always" if warns else "error")
        op_of(lambda x: sharded(x) * 2, target)  # equal functions share a conversion, which warns once


REFUSED = {
    four_bits: r"`stablehlo.convert` \(.*test_targets.py:\d+\) in this form needs StableHLO 1\.8\.0, and the target "
    r"tensorflow==2.18 reads 1\.7\.3\. Choose a newer target",
    dot_algorithm: r"`stablehlo.dot_general` \(.*test_targets.py:\d+\) asks for an algorithm .* and tensorflow==2.18 ends "
    r"with a segmentation fault",
}


@pytest.mark.parametrize("function", list(REFUSED))
def test_an_op_that_the_target_cannot_run(function: Any):
    with pytest.raises(ConversionError, match=REFUSED[function]):
        jax2tf.convert(function, stablehlo_version="tensorflow==2.18")(X)


@pytest.mark.parametrize("function", list(REFUSED))
def test_it_runs_where_it_can(function: Any):
    np.testing.assert_allclose(jax2tf.convert(function)(X), function(X), rtol=1e-2)


UNKNOWN = {
    "tensorflow==2.16": "What TensorFlow 2.16 reads was not measured; these were: 2.17.0, ",
    "tensorflow==9.9": "was not measured",
    "tensorflow>=2.18": "A target is written like '1.13.0' .* or 'tensorflow==2.18', got 'tensorflow>=2.18'",
    "2.18": "A target is written like",
    "99.0.0": "is outside",
    "0.1.0": "is outside",
}


@pytest.mark.parametrize("target", list(UNKNOWN))
def test_an_unknown_target_is_an_error_before_any_call(target: Any):
    with pytest.raises(ConversionError, match=UNKNOWN[target]):
        jax2tf.convert(jnp.sin, stablehlo_version=target)


def test_a_target_newer_than_jax_or_tensorflow_is_written_as_they_can(monkeypatch: Any):
    monkeypatch.setattr("jaxbridge.jax2tf.targets.installed", lambda: releases()["2.18.1"])
    assert (resolve("tensorflow==2.20").stablehlo, resolve("tensorflow==2.20").calling_convention) == ("1.7.3", 9)
    assert not resolve("tensorflow==2.20").shardy


def test_the_calling_convention_of_other_threads_is_left_alone():
    seen: list[int] = []
    export = lambda: seen.append(jax.export.export(jax.jit(jnp.sin))(X).calling_convention_version)
    with _jax_private.calling_convention(9):
        thread = threading.Thread(target=export)
        thread.start()
        thread.join()
        export()
    export()
    assert seen == [jax.export.maximum_supported_calling_convention_version, 9, seen[0]]


def test_a_lower_convention_in_the_config_is_kept():
    name = "jax_export_calling_convention_version"
    before = getattr(jax.config, name)
    with contextlib.ExitStack() as stack:
        stack.callback(jax.config.update, name, before)
        jax.config.update(name, 9)
        assert op_of(jnp.cos, None).attr["version"].i == 9
