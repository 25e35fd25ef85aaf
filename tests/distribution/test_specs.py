"""Specs as plain data."""

import pytest
from jax.sharding import PartitionSpec as P

from jaxbridge.distribution.specs import axes_of_spec, check_axes, spec_text
from jaxbridge.errors import JaxBridgeError, ShardingError


@pytest.mark.parametrize(
    ("spec", "rank", "axes"),
    [
        (P(), 2, (None, None)),
        (P("model"), 3, ("model", None, None)),
        (P(("data", "model"), None), 2, (("data", "model"), None)),
        (P(("data",)), 1, ("data",)),
        (P(P.UNCONSTRAINED, "model"), 2, (None, "model")),
        ((None, "model"), 2, (None, "model")),
        (P(None, None, "model"), 1, (None, None, "model")),
    ],
)
def test_axes(spec, rank, axes):
    assert axes_of_spec(spec, rank) == axes


def test_as_text():
    assert spec_text((None, ("data", "model"))) == "P(None, ('data', 'model'))"


SIZES = {"data": 2, "model": 4}


@pytest.mark.parametrize("axes", [(None, None), ("data", "model"), (("data", "model"), None), ("model",)])
def test_what_fits(axes):
    check_axes("w", (8, 4), axes, SIZES, "a test")


@pytest.mark.parametrize(
    ("axes", "parts"),
    [
        (("expert", None), ["no axis 'expert'", "data=2, model=4", "LayoutMap"]),
        ((None, ("data", "model")), ["dimension 1 of size 4", "not divisible by 8", "('data', 'model')"]),
        (("model", "model"), ["'model' splits two"]),
        ((None, None, "data"), ["3 entries", "2 dimensions"]),
    ],
)
def test_what_does_not(axes, parts):
    with pytest.raises(ShardingError) as caught:
        check_axes("net/params/w", (8, 4), axes, SIZES, "its annotation")
    text = str(caught.value)
    assert [part for part in ["'net/params/w' of shape (8, 4)", "its annotation", *parts] if part not in text] == []


def test_the_error_is_a_value_error():
    assert issubclass(ShardingError, ValueError) and issubclass(ShardingError, JaxBridgeError)
