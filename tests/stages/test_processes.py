"""What needs a process of its own: a mesh of 8 devices, the memory of models that do not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[2]
MESH = [["data", 2], ["model", 4]]


ON_JAX = pytest.mark.keras_backends("jax")  # models of native layers


@pytest.fixture(scope="module")
def found():
    environment = {**os.environ, "KERAS_BACKEND": keras.config.backend(), "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "tests.stages.mesh_worker"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["abstract layer", pytest.param("abstract model", marks=ON_JAX)])
def test_ten_billion_parameters_need_no_memory(found, what: str):
    parameters = 8192 * 100_000 + 100_000 * 92_000
    assert parameters > 10e9
    assert found[what] == 4 * (parameters + 2 * 8192)  # 37 GiB of arguments ...
    peak = found[f"{what} GiB"]
    print(f"{what}: {parameters / 1e9:.2f}e9 parameters, peak memory {peak:.2f} GiB")
    assert peak < 2  # ... in a process of TensorFlow and JAX, which takes 0.4 to 1 by itself


PATHS = {"layer": ("net/params/down/kernel", "net/params/up/kernel"), "model": ("net/down/kernel", "net/up/kernel")}


@pytest.mark.parametrize("what", ["layer", pytest.param("model", marks=ON_JAX)])
def test_a_mesh_of_2_by_4(found, what: str):
    told = found[what]
    down, up = PATHS[what]
    assert told["collectives"] == ["all-reduce"]  # of the second product, whose rows are split
    assert told["variables"][down] == [MESH, ["model", None]] or told["variables"][down] == [MESH, ["model"]]
    assert told["variables"][up] == [MESH, [None, "model"]]
    assert told["inputs"][0] == "data" and told["outputs"][0] == "data"
    assert told["global shapes"] == [[32, 16], [16, 32], [8, 16]]  # of all devices together
    assert told["argument bytes"] == 4 * (32 * 16 // 4 + 16 * 32 // 4 + 8 * 16 // 2)  # of one
    assert told["flops"] >= 2 * (2 * 8 * 16 * 32) / 8


@ON_JAX
def test_layers_and_models_split_alike(found):
    assert {**found["layer"], "variables": None} == {**found["model"], "variables": None}


def test_inputs_on_a_mesh_of_jax(found):
    assert found["jax mesh"]["inputs"] == ["data", "model"]
    assert found["jax mesh"]["collectives"] == ["all-reduce"]
