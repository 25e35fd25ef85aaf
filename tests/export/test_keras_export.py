"""Keras' own exporter with bridge layers: as it is on the TensorFlow backend, under `patch()` on both."""

import contextlib

import keras
import numpy as np
import pytest

from jaxbridge import jax2tf, serve_without_jax
from tests.export.models import mixed


@pytest.mark.keras_backends("tensorflow")
def test_served_without_jax_as_it_is(tmp_path):
    check_served(tmp_path, contextlib.nullcontext)


def test_served_without_jax_under_patch(tmp_path):
    check_served(tmp_path, jax2tf.patch)


def check_served(tmp_path, context):
    model = mixed()
    with context():
        model.export(tmp_path / "served", verbose=False)
    given = {"seq": np.ones((3, 6, 4), "float32"), "extra": np.ones((3, 3), "float32")}
    served = serve_without_jax(tmp_path / "served", [given])[0]
    for name, value in model(given).items():
        np.testing.assert_allclose(served[name], keras.ops.convert_to_numpy(value), rtol=1e-4, atol=1e-5)
