"""Arrays that a function closes over: warned of when large, refused when no graph could hold them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbridge.core import jaxprs
from jaxbridge.errors import ConversionError

TABLE = np.ones((100, 10), "float32")


def inside(wrapper):
    return lambda x: wrapper(lambda y: y @ TABLE)(x)


FUNCTIONS = {
    "plain": lambda x: x @ TABLE,
    "jit": inside(jax.jit),
    "checkpoint": inside(jax.checkpoint),
    "twice": lambda x: x @ TABLE + (x + 1) @ TABLE,
    "scan": lambda x: jax.lax.scan(lambda c, _: (c, c @ TABLE), x, None, length=2)[1],
}


def jaxpr_of(name):
    return jax.make_jaxpr(FUNCTIONS[name])(jnp.ones((2, 100)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_found_once(name):
    assert sum(array.size for array in jaxprs.closed_over_arrays(jaxpr_of(name))) == TABLE.size


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_graph_cannot_hold_is_refused(name, monkeypatch):
    jaxprs.refuse_too_large(jaxpr_of(name))
    monkeypatch.setattr(jaxprs, "GRAPH_LIMIT_BYTES", TABLE.nbytes - 1)
    with pytest.raises(ConversionError, match=r"0\.0 MiB \(float32\[100, 10\]\).*Pass them as arguments"):
        jaxprs.refuse_too_large(jaxpr_of(name))


def test_a_conversion_is_refused_before_it_is_lowered(monkeypatch):
    import tensorflow as tf

    from jaxbridge import jax2tf
    from jaxbridge.jax2tf import gradients

    monkeypatch.setattr(jaxprs, "GRAPH_LIMIT_BYTES", TABLE.nbytes - 1)
    monkeypatch.setattr(gradients, "lower", lambda *args: pytest.fail("lowered"))
    with pytest.raises(ConversionError, match="limited to"):
        jax2tf.convert(FUNCTIONS["plain"])(tf.ones((2, 100)))
