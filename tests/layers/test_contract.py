"""Every way that Keras calls, builds, traces, saves and trains a layer, and what modules of every library have."""

import pytest

from jaxbridge import FlaxLayer, JaxLayer, ModuleLayer
from tests import contract, module_contract

API = contract.Api(JaxLayer, FlaxLayer, ModuleLayer)


@pytest.mark.parametrize("name", contract.ROWS)
def test_contract(name):
    contract.ROWS[name](API)


@pytest.mark.parametrize("name", module_contract.ROWS)
def test_module_contract(name):
    module_contract.ROWS[name](API)
