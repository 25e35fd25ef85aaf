"""The option `nan` of layers: checked, saved, and part of what layers share by."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer, ModuleLayer
from jaxbridge.errors import SignatureError

X = np.array([[1, np.nan, 2], [np.nan, 1, 0], [1, 2, 3]], "float32")


class Largest(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.max(nn.Dense(1, kernel_init=nn.initializers.ones)(x[..., None])[..., 0], -1, keepdims=True)


def largest(inputs):
    return jnp.max(inputs, -1, keepdims=True)


LAYERS: dict[str, Any] = {
    "JaxLayer": lambda **options: JaxLayer(largest, **options),
    "FlaxLayer": lambda **options: FlaxLayer(Largest(), **options),
    "ModuleLayer": lambda **options: ModuleLayer(Largest(), **options),
}


@pytest.mark.parametrize("name", LAYERS)
def test_nan_is_kept(name: str):
    layer = LAYERS[name]()
    want = X.max(-1, keepdims=True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(X)), want)
    model = keras.Sequential([keras.Input((3,)), layer])
    np.testing.assert_array_equal(model.predict(X, verbose=0), want)
    # One that is equal but for `nan` computes for itself.
    LAYERS[name](nan="fast")(X)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(LAYERS[name]()(X)), want)


@pytest.mark.parametrize("name", LAYERS)
def test_in_the_config_if_it_is_not_the_default(name: str):
    if name == "JaxLayer":
        assert LAYERS[name](nan="fast").get_config()["nan"] == "fast"
    else:
        layer = LAYERS[name](nan="fast")
        assert type(layer).from_config(layer.get_config()).get_config()["nan"] == "fast"
    assert "nan" not in LAYERS[name]().get_config()


@pytest.mark.parametrize("name", LAYERS)
def test_another_word_is_refused(name: str):
    with pytest.raises(SignatureError, match="`nan` must be one of 'keep'"):
        LAYERS[name](nan="slow")
