"""How an adapter is found, and what is said where there is none."""

import subprocess
import sys
from importlib import metadata

import flax.linen as nn
import pytest
from flax import nnx

from jaxbridge import FlaxLayer, ModuleLayer, adapters
from jaxbridge.adapters import Adapted, Adapter
from jaxbridge.core.pure_model import PureModel
from jaxbridge.errors import SignatureError, StructureError


class Thing:
    pass


class ThingAdapter(Adapter):
    library = __name__

    def handles(self, module):
        return isinstance(module, Thing)

    def adapt(self, module, options):
        return Adapted(PureModel(None, lambda p, s, k, i, t: (i.args[0], s)))


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(adapters, "_REGISTERED", dict(adapters._REGISTERED))
    yield
    adapters.load.cache_clear()
    adapters._entry_points.cache_clear()


def test_a_registered_adapter_is_found():
    adapters.register(__name__, ThingAdapter)
    assert isinstance(adapters.find_adapter(Thing()), ThingAdapter)


def test_an_entry_point_is_found(monkeypatch):
    sys.modules["tests_of_entry_points"] = sys.modules[__name__]
    point = metadata.EntryPoint(__name__, "tests_of_entry_points:ThingAdapter", adapters.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    adapters._entry_points.cache_clear()
    assert isinstance(adapters.find_adapter(Thing()), ThingAdapter)


def test_an_entry_point_is_not_imported_for_modules_of_other_libraries(monkeypatch):
    point = metadata.EntryPoint("elsewhere", "no_such_package:Adapter", adapters.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    adapters._entry_points.cache_clear()
    assert adapters.find_adapter(nn.Dense(2)).library == "flax.linen"


def test_no_library_is_imported_by_looking_for_an_adapter():
    code = (
        "import sys\nfrom jaxbridge import adapters\nadapters.find_adapter(lambda inputs: inputs)\n"
        "print([name for name in ('flax', 'haiku', 'equinox') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_what_is_no_adapter_is_refused():
    adapters.register(__name__, Thing)
    with pytest.raises(StructureError, match="must be a subclass of"):
        adapters.find_adapter(Thing())


ERRORS = [
    ("No adapter knows an object of type Thing.*new_adapter", lambda: ModuleLayer(Thing())),
    ("ModuleLayer", lambda: FlaxLayer(lambda inputs: inputs)),
    ("`vmap` means nothing", lambda: FlaxLayer(nn.Dense(2), vmap=True)),
    ("`collections` says 'keep'", lambda: FlaxLayer(nn.Dense(2), collections={"cache": "keep"})),
    ("no type of nnx.Variable", lambda: FlaxLayer(nnx.Linear, args=(3, 4), collections={"no such": "state"})),
    ("those of a class", lambda: FlaxLayer(nnx.Dropout(0.5), args=(1,))),
    ("'encode', and Dense has no such method", lambda: FlaxLayer(nn.Dense(2), method="encode")),
    ("`training_flag` names 'mode'", lambda: FlaxLayer(nn.Dense(2), training_flag="mode")),
    ("Write the pair", lambda: FlaxLayer(nn.Dropout(0.5), training_flag={"deterministic": True})),
    ("write 'training' or 'always'", lambda: FlaxLayer(nn.Dropout(0.5), rngs={"dropout": "never"})),
    ("`rng_impl` must be one of", lambda: FlaxLayer(nn.Dropout(0.5), rng_impl="philox")),
]


@pytest.mark.parametrize(("message", "make"), ERRORS, ids=[message[:30] for message, _ in ERRORS])
def test_errors(message, make):
    with pytest.raises((SignatureError, StructureError, ValueError), match=message):
        make()
