"""The folder of an export: what is kept of an older one, what a killed export leaves, a disk that is full."""

import resource
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import export_saved_model
from jaxbridge.errors import ExportError
from jaxbridge.export import folders


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)], name="m")


KEPT = {
    "assets.extra/tf_serving_warmup_requests": "warm",
    "README.md": "mine",
    "labels/en/names.txt": "a b",
    "variables/notes.txt": "mine too",
}


def test_what_somebody_put_into_a_saved_model_stays(model, tmp_path):
    served = tmp_path / "served"
    export_saved_model(model, served, target="tensorflow==2.18", verify=False)
    for name, text in KEPT.items():
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_text(text)
    (served / "latest").symlink_to("labels")
    old = {path.relative_to(served) for path in served.rglob("*")}
    (served / "variables" / "variables.data-00007-of-00008").write_text("of an older TensorFlow")
    model.layers[-1].bias.assign([1.0, 2.0])
    export_saved_model(model, served, verify=False)
    assert {name: (served / name).read_text() for name in KEPT} == KEPT
    assert (served / "latest").is_symlink()
    assert {path.relative_to(served) for path in served.rglob("*")} == old
    assert "2.18" not in (served / "assets.extra" / "jaxbridge.json").read_text().split("written_with")[0]
    served = tf.saved_model.load(str(served))
    np.testing.assert_array_equal(served.serve(tf.zeros((1, 3))), [[1, 2]])


#: Ends itself in the middle of an export, or after it took the old one away.
KILLED = """
import importlib.util, os, signal, sys, types
from pathlib import Path
sys.modules["jaxbridge"] = types.ModuleType("jaxbridge")
for name, file in (("jaxbridge.errors", "{errors}"), ("folders", "{folders}")):
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
target = Path("{target}")
with module.workshop(target) as folder:
    (folder / "model").mkdir()
    if {taken}:
        os.rename(target, folder / "replaced")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_an_export(target, taken):
    files = {"errors": Path(folders.__file__).parent.parent / "errors.py", "folders": folders.__file__}
    script = KILLED.format(**files, target=target, taken=taken)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9


@pytest.mark.parametrize("taken", [False, True])
def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path, taken):
    target = tmp_path / "served"
    target.mkdir()
    (target / "saved_model.pb").write_text("old")
    kill_an_export(target, taken)
    assert [path.name for path in tmp_path.glob(".served-*/model")] == ["model"]
    (tmp_path / ".served-notes").mkdir()  # a name alone is no reason
    with folders.workshop(target):
        assert (target / "saved_model.pb").read_text() == "old"  # put back, if it was taken away
    assert sorted(path.name for path in tmp_path.iterdir()) == [".served-notes", "served"]


def test_an_export_that_runs_is_left_alone(tmp_path):
    with folders.workshop(tmp_path / "served") as first:
        with folders.workshop(tmp_path / "served") as second:
            assert first.is_dir() and second.is_dir() and first != second
        assert first.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path):
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(
            ExportError, match=r"(?s)Nothing can be written in .*MB are free there.*Nothing was left behind"
        ):
            export_saved_model(model, tmp_path / "served", verify=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
