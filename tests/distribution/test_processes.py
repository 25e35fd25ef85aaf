"""Two processes with four devices each, over gloo: training, saving, loading, exporting; one dies, one never comes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from jaxbridge import serve_without_jax
from tests.distribution import process_worker
from tests.distribution.checks import ROOT
from tests.distribution.process_worker import HEARTBEAT_TIMEOUT, data, fit, make_model

#: Seconds after which a process is taken to hang: what it may wait for others by its own limits, and starting up on a
#: machine that does other things too.
BOUND = 480

#: Seconds by which a busy machine may be late.
SLACK = 40

#: Sums over devices are made in another order; losses and weights after two Adam steps.
RTOL, ATOL = 2e-4, 2e-5


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return str(listening.getsockname()[1])


def start(mode, indices, folder):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", process_worker.__name__, mode, str(index), port, str(folder)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in indices
    ]


def finish(processes):
    """Waits for processes; returns what they printed. None outlives the test."""
    end = time.monotonic() + BOUND
    try:
        return [process.communicate(timeout=max(end - time.monotonic(), 1))[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What both processes found, and the folder they wrote to."""
    folder = tmp_path_factory.mktemp("processes")
    processes = start("train", (0, 1), folder)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"found{index}.json").read_text()) for index in (0, 1)], folder


@pytest.fixture(scope="module")
def alone():
    """The same model, trained in this process on one device."""
    keras.utils.clear_session(free_memory=False)
    model = make_model()
    losses = fit(model)
    return losses, {variable.path: np.asarray(variable.value) for variable in model.variables}, model


@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
def test_losses_are_those_of_one_process(trained, alone, mesh):
    for found in trained[0]:
        np.testing.assert_allclose(found[f"losses {mesh}"], alone[0], RTOL)


def test_each_process_holds_its_shards(trained):
    for found in trained[0]:
        assert found["devices"] == 8
        assert found["shards"] == found["still sharded"] == [8, 4]
        assert found["distribution is back"]


def test_a_bridge_layer_gathers_what_it_saves(trained, alone):
    shapes = {
        path.removeprefix("model/net/").replace("/", "."): list(value.shape)
        for path, value in alone[1].items()
        if path.startswith(("model/net/params", "model/net/batch_stats"))
    }
    for found in trained[0]:
        assert found["stored"] == {**shapes, "seed_generator.state": [2]}


@pytest.mark.parametrize("index", [0, 1])
def test_loaded_on_another_mesh(trained, alone, index):
    """Saved on 1 x 8, loaded on 2 x 4 in both processes."""
    with np.load(trained[1] / f"loaded{index}.npz") as file:
        assert {name.replace(".", "/") for name in file} == set(alone[1])
        for path, value in alone[1].items():
            np.testing.assert_allclose(file[path.replace("/", ".")], value, RTOL, ATOL, err_msg=path)


def test_loaded_in_one_process(trained, alone):
    keras.utils.clear_session(free_memory=False)
    model = keras.models.load_model(trained[1] / "model.keras", custom_objects={"Net": process_worker.Net})
    x, _ = data()
    np.testing.assert_allclose(model.predict(x, verbose=0), alone[2].predict(x, verbose=0), RTOL, ATOL)
    moments = [v for v in model.optimizer.variables if "down_kernel" in v.path]
    assert len(moments) == 2 and all(np.abs(np.asarray(v.value)).max() > 0 for v in moments)


def test_exported_by_one_process(trained, alone):
    assert trained[0][0]["exported"] < 1e-5
    x, _ = data()
    (served,) = serve_without_jax(trained[1] / "served", [{"x": x}])
    np.testing.assert_allclose(served["output_0"], alone[2].predict(x, verbose=0), RTOL, ATOL)


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """Side by side, since all they do is wait: two processes one of which is killed, and one that waits for another."""
    folder = tmp_path_factory.mktemp("lost")
    survivor, killed = start("die", (0, 1), folder)
    (waiting,) = start("late", (0,), folder)
    (killed_printed,) = finish([killed])
    since = time.monotonic()
    survivor_printed, waiting_printed = finish([survivor, waiting])
    return {
        "killed": (killed.returncode, killed_printed),
        "survivor": (survivor.returncode, survivor_printed),
        "waiting": (waiting.returncode, waiting_printed),
        "seconds": time.monotonic() - since,
    }


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other(lost):
    """It is killed in the middle of training; the other ends with an error that says so, in bounded time."""
    assert lost["killed"][0] == -signal.SIGKILL and "in the middle" in lost["killed"][1]
    code, printed = lost["survivor"]
    assert code != 0 and "tasks are unhealthy" in printed, printed
    assert lost["seconds"] < 2 * HEARTBEAT_TIMEOUT + SLACK


@pytest.mark.slow
def test_a_process_that_never_comes_ends_the_wait(lost):
    code, printed = lost["waiting"]
    assert code != 0 and "DEADLINE_EXCEEDED" in printed, printed
