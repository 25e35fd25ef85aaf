"""Every way that Keras calls, builds, traces, saves and trains a layer."""

import pytest

from jaxbridge import FlaxLayer, JaxLayer
from tests.contract import ROWS, Api


@pytest.mark.parametrize("name", ROWS)
def test_contract(name):
    ROWS[name](Api(JaxLayer, FlaxLayer))
