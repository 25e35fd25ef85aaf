"""`patch`, `install` and `uninstall`: our `convert` in the place of `jax.experimental.jax2tf.convert`."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf as experimental

from jaxbridge import jax2tf

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


def test_not_on_import():
    assert experimental.convert is ORIGINAL
