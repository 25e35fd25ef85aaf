"""A converted function returns what the JAX function returns."""

import jax
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from tests.jax2tf.cases import FORWARD, Case, arguments
from tests.jax2tf.helpers import assert_same, concrete, polymorphic

CASES = [pytest.param(case, id=name) for name, case in FORWARD.items()]


@pytest.mark.parametrize("case", CASES)
def test_eager_with_fixed_sizes(case: Case):
    args = arguments(case)
    assert_same(jax2tf.convert(case.fn)(*args), jax.jit(case.fn)(*args))


@pytest.mark.parametrize("case", CASES)
def test_graph_with_symbolic_sizes(case: Case):
    """One graph, traced once with an unknown batch, at two sizes of the batch."""
    function = concrete(jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case)), case, known_batch=False)
    for batch in (3, 2):
        args = arguments(case, batch)
        if case is FORWARD["rng_bit_generator"]:
            args = arguments(case)
        assert_same(function(*args), jax.jit(case.fn)(*args))


# Functions whose composites, shapes or randomness XLA in `jit_compile` treats in another way than XlaCallModule alone.
JIT = ["matmul_tanh", "gelu_exact", "top_k", "conv", "attention", "random", "scan", "cond", "sizes"]


@pytest.mark.parametrize("name", JIT)
def test_jit_compile_with_symbolic_sizes(name: str):
    case = FORWARD[name]
    converted = jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case))
    args = arguments(case)
    assert_same(concrete(converted, case, known_batch=False, jit_compile=True)(*args), jax.jit(case.fn)(*args))


ZERO_ROWS = ["matmul_tanh", "softmax", "conv", "sort", "random", "vmap", "einsum", "concatenate", "layer_norm"]


@pytest.mark.parametrize("name", ZERO_ROWS)
@pytest.mark.parametrize("batch", [0, 1])
def test_batch_of_few_rows(name: str, batch: int):
    case = FORWARD[name]
    converted = jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case))
    args = arguments(case, batch)
    want = jax.jit(case.fn)(*args)
    assert_same(converted(*args), want)
    assert_same(concrete(converted, case, known_batch=False)(*args), want)


# XLA refuses these at 0 rows: the window of a cumulative sum has the size of the axis.
@pytest.mark.parametrize("name", [pytest.param("cumsum_batch", marks=pytest.mark.xfail(strict=True))])
def test_batch_of_no_rows_known_difference(name: str):
    case = FORWARD[name]
    args = arguments(case, 0)
    converted = jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case))
    assert_same(converted(*args), jax.jit(case.fn)(*args))


ORACLE = ["matmul_tanh", "softmax", "conv", "max_pool", "gather", "scan", "random", "layer_norm"]


@pytest.mark.parametrize("name", ORACLE)
def test_equals_jax_experimental_jax2tf(name: str):
    """With fixed sizes, where every pair of JAX and TensorFlow can run it."""
    from jax.experimental import jax2tf as experimental

    case = FORWARD[name]
    args = arguments(case)
    assert_same(jax2tf.convert(case.fn)(*args), jax.tree.map(np.asarray, experimental.convert(case.fn)(*args)))


def test_sizes_of_outputs_follow_from_known_sizes_in_a_graph():
    converted = jax2tf.convert(lambda x: jax.numpy.concatenate([x, x]).reshape(-1), polymorphic_shapes="(b, c)")
    function = tf.function(converted, autograph=False)
    assert function.get_concrete_function(tf.TensorSpec((3, 4))).output_shapes == (24,)
    assert function.get_concrete_function(tf.TensorSpec((None, 4))).output_shapes.as_list() == [None]


def test_inside_a_strategy_with_two_replicas():
    from tests.jax2tf.helpers import run_python

    printed = run_python("""
        import tensorflow as tf, jax.numpy as jnp
        from jaxbridge import jax2tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            w = tf.Variable([[2.0], [3.0]])
        f = jax2tf.convert(lambda w, x: jnp.sin(x @ w), polymorphic_shapes=[None, "b, 2"])

        @tf.function
        def gradients():
            def replica():
                x = tf.ones((2, 2)) * (1.0 + tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32))
                with tf.GradientTape() as tape:
                    y = tf.reduce_sum(f(w, x))
                return tape.gradient(y, w)
            return strategy.reduce("SUM", strategy.run(replica), axis=None)

        with tf.GradientTape() as tape:
            y = sum(tf.reduce_sum(tf.sin(tf.matmul(tf.ones((2, 2)) * s, w.read_value()))) for s in (1.0, 2.0))
        want = sum(2 * s * tf.cos(5.0 * s) for s in (1.0, 2.0))
        got = gradients()
        assert abs(float(got[0, 0]) - float(want)) < 1e-5, (got, want)
        print("done")
    """)
    assert printed.endswith("done\n")
