"""What `export/_jax_private.py` and `export/_tf_private.py` rely on; each fails when it moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbridge.export import _jax_private, _tf_private

MODULES = {
    "text": lambda exported: exported.mlir_module(),
    "artifact": lambda exported: exported.mlir_module_serialized,
}


def exported():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    constrained = lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, PartitionSpec("data")))
    return jax.export.export(jax.jit(constrained))(jax.ShapeDtypeStruct((4,), "float32"))


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_says_of_sharding(module: str):
    found = _jax_private.module_sharding(MODULES[module](exported()))
    assert found.meshes == ({"data": 1},) and found.partitions == 1 and not found.is_manual
    assert len(found.constraints) == 1 and "data" in found.constraints[0]


def test_a_module_with_another_mesh():
    found = _jax_private.with_mesh(exported(), {"data": 2})
    assert _jax_private.module_sharding(found.mlir_module()).meshes == ({"data": 2},)
    assert _jax_private.module_sharding(found.vjp().mlir_module()).meshes == ({"data": 2},)


def test_a_saved_model_is_read_from_its_files(tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable([[1.0], [2.0]], name="kernel")
    module.call = tf.function(lambda x: x @ module.kernel, input_signature=[tf.TensorSpec((None, 2))])
    tf.saved_model.save(module, str(tmp_path))
    assert [node.op for node in _tf_private.nodes(tmp_path, "MatMul")] == ["MatMul"]
    found = _tf_private.variables(tmp_path)
    assert list(found) == ["kernel"]
    np.testing.assert_array_equal(found["kernel"], [[1.0], [2.0]])
