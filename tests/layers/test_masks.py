"""Keras masks: a layer with `supports_masking` passes them on, whether or not it reads them itself."""

import flax.linen as nn
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer

PADDED, BARE = np.array([[1, 2, 0, 0]]), np.array([[1, 2]])


class TakesMask(nn.Module):
    @nn.compact
    def __call__(self, x, mask=None):
        return nn.Dense(4)(x) if mask is None else nn.Dense(4)(x * mask[..., None])


@keras.saving.register_keras_serializable(package="masks")
class Native(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return inputs * 2


@keras.saving.register_keras_serializable(package="masks")
def doubled_where_seen(inputs, mask):
    return inputs * 2


def supporting(layer):
    layer.supports_masking = True
    return layer


LAYERS = {
    "native layer that takes the mask": Native,
    "function that takes the mask": lambda: supporting(JaxLayer(doubled_where_seen)),
    "module that takes the mask": lambda: supporting(FlaxLayer(TakesMask())),
    "module without a mask": lambda: supporting(FlaxLayer(nn.Dense(4))),
}


def has_mask(tensor):
    return getattr(tensor, "_keras_mask", None) is not None


@pytest.mark.parametrize("name", LAYERS)
def test_mask_goes_on_to_the_next_layer(name):
    layer = LAYERS[name]()
    embed = keras.layers.Embedding(5, 3, mask_zero=True)
    assert has_mask(layer(embed(PADDED)))  # the call that builds
    ids = keras.Input((None,), dtype="int32")
    out = layer(embed(ids))
    assert has_mask(out)
    assert has_mask(layer(embed(PADDED)))


@pytest.mark.parametrize("name", LAYERS)
def test_padding_is_left_out_of_a_mean(name, tmp_path):
    ids = keras.Input((None,), dtype="int32")
    hidden = LAYERS[name]()(keras.layers.Embedding(5, 3, mask_zero=True)(ids))
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(hidden))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"TakesMask": TakesMask})
    want = model(BARE)
    for have in (model(PADDED), loaded(PADDED)):  # float32 sums in another order
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (have, want)), atol=1e-6)


def test_mask_can_be_withheld_again():
    layer = supporting(FlaxLayer(TakesMask()))
    layer.supports_masking = False
    assert not has_mask(layer(keras.layers.Embedding(5, 3, mask_zero=True)(PADDED)))
    assert "supports_masking" not in layer.get_config()
