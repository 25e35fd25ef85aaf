"""Arguments of `jax.experimental.jax2tf.convert` that leave no choice: taken, with what happens instead."""

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from jaxbridge import jax2tf

X = np.float32([0.5])


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("native_serialization", "a function is one XlaCallModule op that holds StableHLO"),
        ("enable_xla", "the op that a function becomes is compiled by XLA"),
    ],
)
def test_false_is_said_to_change_nothing(name: str, instead: str):
    with pytest.warns(UserWarning, match=re.escape(f"`{name}=False` has no effect: {instead}")):
        converted = jax2tf.convert(jnp.sin, **{name: False})
    np.testing.assert_allclose(converted(X), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["native_serialization", "enable_xla"])
def test_true_is_what_is_always_so(name: str):
    with pytest.warns(DeprecationWarning, match=f"`{name}=True` says what is always so; leave it out."):
        jax2tf.convert(jnp.sin, **{name: True})


def test_not_given_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax2tf.convert(jnp.sin)
