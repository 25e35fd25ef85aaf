"""`patch`, `install` and `uninstall`: our `convert` in the place of `jax.experimental.jax2tf.convert`."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf as experimental

from jaxbridge import jax2tf
from jaxbridge.export import serve_without_jax

ORIGINAL = experimental.convert


@pytest.fixture(autouse=True)
def restored():
    yield
    left = experimental.convert
    jax2tf.uninstall()
    assert left is ORIGINAL


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def test_users_of_jax2tf_get_ours():
    """With a symbolic batch, which the pair of the newest JAX and TensorFlow cannot run without it."""
    x = np.float32([[0.5, -1.0]])
    with jax2tf.patch():
        assert experimental.convert is not ORIGINAL
        got = experimental.convert(exact_gelu, polymorphic_shapes=["(b, 2)"])(x)
    np.testing.assert_allclose(got, exact_gelu(x), rtol=1e-5)


def test_what_was_converted_stays_ours():
    with jax2tf.patch():
        converted = experimental.convert(exact_gelu, polymorphic_shapes=["(b, 2)"])
    x = np.float32([[0.5, -1.0]])
    np.testing.assert_allclose(converted(x), exact_gelu(x), rtol=1e-5)


def test_restored_after_an_exception():
    with pytest.raises(RuntimeError, match="inside"), jax2tf.patch():
        raise RuntimeError("inside")
    assert experimental.convert is ORIGINAL


def test_nested():
    with jax2tf.patch():
        with jax2tf.patch():
            pass
        assert experimental.convert is not ORIGINAL
    assert experimental.convert is ORIGINAL


def test_install_twice_and_uninstall_twice():
    jax2tf.install()
    ours = experimental.convert
    jax2tf.install()
    assert experimental.convert is ours is not ORIGINAL
    jax2tf.uninstall()
    assert experimental.convert is ORIGINAL
    jax2tf.uninstall()
    assert experimental.convert is ORIGINAL


def test_patch_inside_install_leaves_it_installed():
    jax2tf.install()
    with jax2tf.patch():
        pass
    assert experimental.convert is not ORIGINAL
    jax2tf.uninstall()


@pytest.mark.parametrize("deprecated", [{"native_serialization": True}, {"enable_xla": True}])
def test_deprecated_arguments_that_say_what_is_always_so(deprecated: dict[str, bool]):
    with jax2tf.patch():
        assert experimental.convert(exact_gelu, **deprecated)(np.float32(0)) == 0


@pytest.mark.filterwarnings("ignore:PolyShape is deprecated")
def test_poly_shape():
    shape = experimental.PolyShape("b", ...)
    with jax2tf.patch():
        assert experimental.convert(exact_gelu, polymorphic_shapes=[shape])(np.zeros((3, 2), "float32")).shape == (3, 2)


def test_without_platforms_it_is_the_one_of_tensorflow_and_cpu(monkeypatch: pytest.MonkeyPatch):
    """jax2tf takes JAX's default backend alone: on a machine with a GPU the file would run on GPUs only."""
    import tensorflow as tf

    # By name: `jaxbridge.jax2tf.patch` is the function, which hides its module.
    monkeypatch.setattr(sys.modules["jaxbridge.jax2tf.patch"], "default_platforms", lambda: ("cpu", "cuda"))
    with jax2tf.patch():
        function = tf.function(experimental.convert(exact_gelu), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((2,))).graph.as_graph_def()
    [op] = [node for node in graph.node if node.op == "XlaCallModule"]
    assert list(op.attr["platforms"].list.s) == [b"CPU", b"CUDA"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_orbax_export_is_served_without_jax(tmp_path: Path):
    """`top_k`, which the newest TensorFlow cannot run as JAX writes it, with an unknown batch."""
    import tensorflow as tf
    from orbax.export import ExportManager, JaxModule, ServingConfig

    def apply(params, x):
        return {"y": exact_gelu(jax.lax.top_k(x @ params["w"], 2)[0])}

    params = {"w": np.float32([[1, 2, 3], [0.5, 0.1, -1], [0, 1, 2]])}
    spec = tf.TensorSpec([None, 3], tf.float32, "x")
    with jax2tf.patch():
        module = JaxModule(params, apply, input_polymorphic_shape="(b, ...)")
        manager = ExportManager(module, [ServingConfig("serving_default", input_signature=[spec])])
        manager.save(str(tmp_path / "served"))
    x = np.float32([[1, 2, 3], [-1, 0, 1], [0.1, 0.2, 0.3], [5, 5, 5]])
    served = serve_without_jax(tmp_path / "served", [{"x": x}, {"x": x[:1]}])
    np.testing.assert_allclose(served[0]["y"], apply(params, x)["y"], rtol=1e-5)
    np.testing.assert_allclose(served[1]["y"], apply(params, x[:1])["y"], rtol=1e-5)


def test_not_on_import():
    assert experimental.convert is ORIGINAL
