"""`jaxbridge doctor`: here, without TensorFlow, without Flax, without click."""

import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import keras
import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCK = """
import importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = ["jaxbridge", *{arguments!r}]
from importlib import metadata
real = metadata.version
def version(name):
    if name.removesuffix("-cpu") in {blocked!r}:
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
from jaxbridge.cli import main
main()
"""


@functools.cache
def run(*arguments: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    source = textwrap.dedent(BLOCK).format(blocked=blocked, arguments=arguments)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "jax"}
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT, env=environment)


def statuses(found: dict) -> dict[str, str]:
    return {check["name"]: check["status"] for check in found["checks"]}


def test_everything_works_here():
    result = run("doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["exit_code"] == 0
    assert found["versions"]["jax"] == jax.__version__ and found["versions"]["keras"] == keras.__version__
    steps = ("train", "convert", "export", "serve")
    named = statuses(found)
    for backend in ("jax", "tensorflow"):
        assert [named[f"self-test on {backend}: {step}"] for step in steps] == ["works"] * 4
    assert named["JAX to TensorFlow"] == "works" and named["requirements"] == "works"


#: Key -> the type of its value. A reader of the JSON may count on these.
SCHEMA = {
    ("versions",): dict,
    ("checks",): list,
    ("exit_code",): int,
    ("jax", "stablehlo_written"): str,
    ("jax", "stablehlo_oldest"): str,
    ("jax", "calling_conventions"): list,
    ("jax", "devices"): list,
    ("tensorflow", "stablehlo_read"): str,
    ("tensorflow", "calling_convention"): int,
    ("tensorflow", "shardy"): bool,
    ("tensorflow", "devices"): list,
    ("tensorflow", "default_platforms"): list,
    ("tensorflow", "written", "stablehlo"): str,
    ("tensorflow", "written", "calling_convention"): int,
}


def test_the_json_has_its_keys():
    found = json.loads(run("doctor", "--json").stdout)
    for path, kind in SCHEMA.items():
        assert type(functools.reduce(lambda node, key: node[key], path, found)) is kind, path
    assert all(set(check) == {"name", "status", "detail"} for check in found["checks"])
    assert {check["status"] for check in found["checks"]} <= {"works", "limited", "missing", "fails"}
    assert found["jax"]["devices"] and found["tensorflow"]["devices"]


def test_without_tensorflow():
    result = run("doctor", "--json", blocked=("tensorflow",))
    assert result.returncode == 3, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["tensorflow"] is None and found["versions"]["tensorflow"] is None and found["exit_code"] == 3
    named = statuses(found)
    assert named["TensorFlow"] == "missing" and named["self-test on tensorflow"] == "missing"
    assert named["self-test on jax: train"] == "works" and "self-test on jax: export" not in named
    details = {check["name"]: check["detail"] for check in found["checks"]}
    assert "pip install tensorflow" in details["TensorFlow"]


def test_without_flax():
    result = run("doctor", "--no-self-test", "--json", blocked=("flax",))
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["versions"]["flax"] is None and statuses(found)["Flax"] == "missing"


def test_the_tables():
    result = run("doctor", "--no-self-test")
    assert result.returncode == 0, result.stderr[-2000:]
    for text in ("Versions", "JAX", "TensorFlow", "Checks", jax.__version__, "Everything works."):
        assert text in result.stdout


def test_without_the_extra():
    result = run("doctor", blocked=("click",))
    assert result.returncode == 1
    assert "The command `jaxbridge` needs click, which is not installed." in result.stderr
    assert "pip install 'jaxbridge[cli]'" in result.stderr


def test_a_broken_self_test_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    from jaxbridge.cli import diagnosis

    monkeypatch.setattr(diagnosis.sys, "executable", "false")  # a process that ends with 1 and prints nothing
    checks = list(diagnosis._self_test("jax", with_tensorflow=True))
    assert [check.status for check in checks] == ["fails"] and "exit code 1" in checks[0].detail
    assert diagnosis.Diagnosis({}, {}, {}, checks).exit_code == 1


def test_what_is_too_old_is_said():
    from jaxbridge.cli.versions import too_old

    [text] = too_old({"jax": "0.4.30", "keras": "99.0", "numpy": None})
    assert text.startswith("jax 0.4.30 is older than 0.")
