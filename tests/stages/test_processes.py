"""What needs a process of its own: a mesh of 8 devices, the memory of models that do not fit, the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[2]
MESH = [["data", 2], ["model", 4]]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": keras.config.backend(), "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def found():
    result = run("-m", "tests.stages.mesh_worker", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["abstract layer", "abstract model"])
def test_ten_billion_parameters_need_no_memory(found, what: str):
    parameters = 8192 * 100_000 + 100_000 * 92_000
    assert parameters > 10e9
    assert found[what] == 4 * (parameters + 2 * 8192)  # 37 GiB of arguments ...
    here, there = found[f"{what} GiB"], found["other process GiB"]
    print(
        f"{what}: {parameters / 1e9:.2f}e9 parameters, peak memory {here:.2f} GiB, of a process it asks {there:.2f} GiB"
    )
    assert here < 2 and there < 2  # ... in processes of TensorFlow and JAX, which take 0.4 to 1 by themselves


PATHS = {"layer": ("net/params/down/kernel", "net/params/up/kernel"), "model": ("net/down/kernel", "net/up/kernel")}


@pytest.mark.parametrize("what", PATHS)
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


def test_layers_and_models_split_alike(found):
    assert {**found["layer"], "variables": None} == {**found["model"], "variables": None}


def test_inputs_on_a_mesh_of_jax(found):
    assert found["jax mesh"]["inputs"] == ["data", "model"]
    assert found["jax mesh"]["collectives"] == ["all-reduce"]


@pytest.fixture(scope="module")
def other_backend():
    """What the command line says on Keras' JAX backend: there nothing is asked of another process."""
    result = run(
        "-m", "jaxbridge", "lower", "tests.stages.models:mixed", "--batch-size", "4", "--json", KERAS_BACKEND="jax"
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_both_backends_say_the_same(other_backend):
    import jaxbridge
    from tests.stages import models

    lowered = jaxbridge.lower(models.mixed, keras.KerasTensor((4, 8)))
    compiled = lowered.compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    assert other_backend["lowered"]["flops"] == lowered.cost_analysis()["flops"]
    assert other_backend["lowered"]["bytes_accessed"] == lowered.cost_analysis()["bytes accessed"]
    assert other_backend["compiled"]["flops"] == cost["flops"]
    assert other_backend["compiled"]["bytes_accessed"] == cost["bytes accessed"]
    for name in ("argument", "output", "temp"):
        assert other_backend["compiled"][f"{name}_size_in_bytes"] == getattr(memory, f"{name}_size_in_bytes")
    assert other_backend["variables"]["mixed/fn/params/w"] == "float32[4, 16]"


SCRIPT = """
import jax.numpy as jnp, keras
import jaxbridge

def double(inputs):
    return jnp.sin(inputs * 2)

def make():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), jaxbridge.JaxLayer(double)])

def main():
    print("ran")
    for given in (make, make()):
        print("sine" in jaxbridge.lower(given, keras.KerasTensor((2, 8))).as_text())
"""


def test_what_a_script_guards_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}\nif __name__ == '__main__':\n    main()\n")
    result = run(str(script))
    assert result.returncode == 0 and "ran" not in result.stderr, result.stderr
    assert result.stdout.split() == ["ran", "True", "True"]
