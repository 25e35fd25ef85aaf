"""Damaged and hostile SavedModels: an error of ours, and nothing outside the model's folder is read."""

import hashlib
import json
import shutil

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxbridge
from jaxbridge.errors import ExportError, ShardingError
from jaxbridge.export.artifact_files import read

INDEX = "assets.extra/jaxbridge/artifacts.json"
BLOB = "assets.extra/jaxbridge/0.jaxexport"
DATA = "variables/variables.data-00000-of-00001"


def init(inputs):
    return {"w": jnp.ones((inputs.shape[-1], 2))}


def call(params, inputs):
    return inputs @ params["w"]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "served"
    layer = jaxbridge.JaxLayer(
        call, init, name="net", sharding=jaxbridge.Sharding({"data": 1}, {"params/w": P(None, "data")})
    )
    model = keras.Sequential([keras.Input((3,)), layer])
    jaxbridge.export_saved_model(model, path, verify=False)
    return path


def index(path, **changes):
    content = json.loads((path / INDEX).read_text())
    (path / INDEX).write_text(json.dumps({**content, **changes}))


def facts(path, **changes):
    content = json.loads((path / INDEX).read_text())
    content["artifacts"][0] |= changes
    (path / INDEX).write_text(json.dumps(content))


def records(path, **changes):
    content = json.loads((path / INDEX).read_text())
    content["artifacts"][0]["records"] |= changes
    (path / INDEX).write_text(json.dumps(content))


def cut(path, file, rest=0.5):
    content = (path / file).read_bytes()
    (path / file).write_bytes(content[: int(len(content) * rest)])


def linked(path):
    shutil.move(path / BLOB, path.parent / "elsewhere")
    (path / BLOB).symlink_to(path.parent / "elsewhere")


def cut_and_signed(path, rest):
    cut(path, BLOB, rest)
    facts(path, sha256=hashlib.sha256((path / BLOB).read_bytes()).hexdigest())


DAMAGE = {
    "index cut": (lambda p: cut(p, INDEX), "artifacts.json is damaged"),
    "index empty": (lambda p: cut(p, INDEX, 0), "artifacts.json is damaged"),
    "index is a list": (lambda p: (p / INDEX).write_text("[]"), "no JSON object"),
    "index is binary": (lambda p: (p / INDEX).write_bytes(b"\xff\xfe"), "is damaged"),
    "newer format": (lambda p: index(p, format=2, jaxbridge="9.1.0"), r"format 2.*reads 1.*'jaxbridge>=9\.1\.0'"),
    "newer format of nobody": (lambda p: index(p, format=2, jaxbridge="; rm"), "pip install -U jaxbridge"),
    "format is text": (lambda p: index(p, format="1"), "its format is '1'"),
    "no artifacts": (lambda p: index(p, artifacts=3), "'artifacts' is no list"),
    "above the folder": (lambda p: facts(p, file="../../saved_model.pb"), "leaves its folder"),
    "absolute": (lambda p: facts(p, file="/etc/passwd"), "leaves its folder"),
    "the folder itself": (lambda p: facts(p, file=".."), "leaves its folder"),
    "backslashes": (lambda p: facts(p, file="..\\x"), "leaves its folder"),
    "a link": (linked, "leaves its folder"),
    "no such file": (lambda p: facts(p, file="7.jaxexport"), "7.jaxexport is damaged"),
    "file is a number": (lambda p: facts(p, file=3), "'file' is 3"),
    "params is a list": (lambda p: facts(p, params=["w"]), "'params' is"),
    "numbers are texts": (lambda p: facts(p, params={"net/params/w": "0"}), "'params' is"),
    "another variable": (lambda p: facts(p, params={"net/params/w": 7}), "variables is damaged"),
    "more variables": (lambda p: facts(p, state={str(n): 0 for n in range(9)}), "takes 2 arrays, and 10 variables"),
    "no records": (lambda p: records(p, layers=[]), "say nothing of sharding"),
    "records are damaged": (lambda p: records(p, layers=[{"layer": 3}]), "sharding is damaged"),
    "records are newer": (lambda p: records(p, format=9), "format 9"),
    "function cut": (lambda p: cut(p, BLOB), "not what was written"),
    "function empty, and signed": (lambda p: cut_and_signed(p, 0), "cannot be read"),
    "function cut, and signed": (lambda p: cut_and_signed(p, 0.5), "cannot be read"),
    "function nearly whole, and signed": (lambda p: cut_and_signed(p, 0.95), "cannot be read"),
    "weights cut": (lambda p: cut(p, DATA, 0), "variables is damaged"),
    "weights gone": (lambda p: (p / DATA).unlink(), "variables is damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_load_jax_says_what_is_wrong(what, good, tmp_path):
    damage, message = DAMAGE[what]
    path = tmp_path / "served"
    shutil.copytree(good, path)
    damage(path)
    with pytest.raises((ExportError, ShardingError), match=f"(?s){message}"):
        jaxbridge.load_jax(path)


def test_the_good_one_is_good(good):
    loaded = jaxbridge.load_jax(good)
    assert np.asarray(loaded(loaded.params, np.ones((2, 3), "float32"))).tolist() == [[3.0, 3.0]] * 2


def test_a_file_of_an_earlier_version_is_read(good, tmp_path):
    """It has neither checksums nor the version."""
    shutil.copytree(good, tmp_path / "served")
    facts(tmp_path / "served", sha256=None)
    index(tmp_path / "served", jaxbridge=None)
    assert read(tmp_path / "served")[0].params == read(good)[0].params


@pytest.mark.parametrize("rest", [0.3, 0.9])
def test_read_sharding_of_half_a_file(rest, good, tmp_path):
    shutil.copytree(good, tmp_path / "served")
    cut(tmp_path / "served", "saved_model.pb", rest)
    with pytest.raises(ShardingError, match="damaged"):
        jaxbridge.read_sharding(tmp_path / "served")
