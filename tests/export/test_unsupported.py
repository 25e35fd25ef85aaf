"""What TensorFlow cannot run stops an export, with its reason, and leaves nothing; linear algebra does not."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import JaxLayer, export_saved_model
from jaxbridge.errors import UnsupportedOperationError

ON_JAX = keras.config.backend() == "jax"


def model_of(fn):
    x = keras.Input((3, 3), name="x")
    return keras.Model(x, JaxLayer(lambda inputs: fn(inputs), name="layer")(x))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: jax.pure_callback(np.sin, x, x), r"`pure_callback` at .*test_unsupported.py:\d+"),
        (lambda x: jnp.linalg.eigvals(x).real, r"`eig` at .*test_unsupported.py:\d+ .*'lapack_sgeev_ffi'"),
    ],
)
def test_stops_and_leaves_nothing(tmp_path, fn, message):
    with pytest.raises(UnsupportedOperationError, match=message):
        model = model_of(fn)
        if ON_JAX:  # where it runs as it is
            assert model(np.ones((2, 3, 3), "float32")).shape[0] == 2
        export_saved_model(model, tmp_path / "new" / "served")
    assert list(tmp_path.iterdir()) == []


def test_debug_print_is_left_out_of_the_file(tmp_path):
    def fn(x):
        jax.debug.print("{}", x.sum())
        return jnp.tanh(x)

    with pytest.warns(UserWarning, match="is without `jax.debug.print`"):
        report = export_saved_model(model_of(fn), tmp_path / "served")
    assert report.verification.max_difference < 1e-5


def test_linear_algebra_is_served(tmp_path):
    fn = lambda x: (
        jnp.linalg.inv(x @ x.swapaxes(-1, -2) + 3 * jnp.eye(3))
        @ jax.nn.initializers.orthogonal()(jax.random.key(0), (3, 3))
    )
    report = export_saved_model(model_of(fn), tmp_path / "served")
    assert report.has_gradients and report.verification.max_difference < 1e-5
