"""`jaxbridge doctor`: here, without TensorFlow, without Flax, without click."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import jax
import keras
import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Run by Python as it starts, also in the processes that the doctor starts.
BLOCK = """
import importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Blocker())
from importlib import metadata
real = metadata.version
def version(name):
    if name.removesuffix("-cpu") in {blocked!r}:
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
"""


def start(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with a folder before all others that Python imports from."""
    variables = os.environ | {"KERAS_BACKEND": "jax"} | environment
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "jaxbridge_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables)


@functools.cache
def run(*arguments: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(textwrap.dedent(BLOCK).format(blocked=blocked))
        return start(*arguments, folder=Path(folder))


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
    assert "pip install 'jaxbridge[cli]'" in result.stderr  # and not a word of Keras, which is imported later


def test_a_broken_self_test_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    from jaxbridge_cli import diagnosis, steps

    monkeypatch.setattr(steps.sys, "executable", "false")  # a process that ends with 1 and prints nothing
    checks = list(diagnosis._self_test("jax", with_tensorflow=True))
    assert [check.status for check in checks] == ["fails"] and "exit code 1" in checks[0].detail
    assert diagnosis.Diagnosis({}, {}, {}, checks).exit_code == 1


def test_what_is_too_old_is_said():
    from jaxbridge_cli.versions import too_old

    [text] = too_old({"jax": "0.4.30", "keras": "99.0", "numpy": None})
    assert text.startswith("jax 0.4.30 is older than 0.")


#: What is wrong -> (modules put before the installed ones, options, environment, what fails -> what its detail says).
BROKEN: dict[str, tuple[dict[str, str], list[str], dict[str, str], dict[str, str]]] = {
    "imports that fail, a platform without a plugin": (
        {"tensorflow": "raise ImportError('libcudart.so: cannot open')", "flax": "raise ImportError('broken flax')"},
        ["--no-self-test"],
        {"JAX_PLATFORMS": "cuda"},
        {
            "TensorFlow": "ImportError: libcudart.so: cannot open. Install it anew",
            "Flax": "ImportError: broken flax. Install it anew: pip install --force-reinstall flax",
            "JAX devices": "The environment variable JAX_PLATFORMS is 'cuda'. Unset it",
        },
    ),
    "an import that ends the process": (
        {"tensorflow": "import os; os._exit(139)"},
        ["--no-self-test"],
        {"KERAS_BACKEND": "tensorflow"},
        {
            "TensorFlow": "The process that imported it ended with exit code 139: it printed no error. Install it anew",
            "Keras": "The environment variable KERAS_BACKEND is 'tensorflow'",
        },
    ),
    "another TensorFlow, a platform and a backend that are none": (
        {"tensorflow": "__version__ = '2.99.0'"},
        [],
        {"JAX_PLATFORMS": "nonsense", "KERAS_BACKEND": "wrong"},
        {
            "TensorFlow": "No module named 'tensorflow.compiler'. Install it anew",
            "JAX devices": "The environment variable JAX_PLATFORMS is 'nonsense'. Unset it",
            "Keras": "Unable to import backend : wrong. The environment variable KERAS_BACKEND is 'wrong'.",
            "self-test on jax: train": "Unable to initialize backend 'nonsense'",
        },
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_a_row(name: str, tmp_path: Path):
    modules, options, environment, failing = BROKEN[name]
    for module, source in modules.items():
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(source)
    result = start("doctor", "--json", *options, folder=tmp_path, **environment)
    found = json.loads(result.stdout)
    assert result.returncode == found["exit_code"] == 1 and result.stderr == ""
    assert found["jax"]["stablehlo_written"] and found["versions"]["keras"] == keras.__version__
    details = {check["name"]: check["detail"] for check in found["checks"] if check["status"] == "fails"}
    assert details.keys() == failing.keys()
    for check, detail in failing.items():
        assert detail in details[check]


@pytest.mark.parametrize("backend", ["wrong", "tensorflow"])
def test_lower_runs_on_jax_whatever_is_set(backend: str, tmp_path: Path):
    """Of native layers there is a JAX function on that backend alone."""
    result = start(
        "lower", "tests.stages.models:mixed", "--input", "4,8", "--json", folder=tmp_path, KERAS_BACKEND=backend
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["variables"]["mixed/dense/kernel"] == "float32[8, 4]"


def test_lower_where_keras_is_broken(tmp_path: Path):
    (tmp_path / "keras.py").write_text("raise ImportError('no keras here')")
    result = start("lower", "tests.stages.models:mixed", folder=tmp_path)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert "ImportError: no keras here. `jaxbridge doctor` looks at all of it." in result.stderr


def test_the_command_is_a_module_too(tmp_path: Path):
    wanted = start("--help", folder=tmp_path).stdout
    variables = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jaxbridge", "--help"]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables).stdout == wanted != ""
