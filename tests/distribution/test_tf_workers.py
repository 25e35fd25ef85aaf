"""Two processes of `tf.distribute.MultiWorkerMirroredStrategy` in a loop of one's own (Keras' `fit` fails under it, native
layers too)."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from tests.distribution import tf_worker
from tests.distribution.checks import ROOT
from tests.distribution.test_processes import finish, free_port
from tests.distribution.tf_worker import ROWS, STEPS, rows

pytestmark = pytest.mark.slow

#: Gradients are summed over workers in another order, three times.
RTOL = 1e-4


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "TF_CONFIG": json.dumps(config),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        command = [sys.executable, "-m", tf_worker.__name__, str(index), str(folder)]
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"worker{index}.json").read_text()) for index in range(2)]


def test_losses_are_those_of_one_process(workers):
    """The same model on one device, trained on all rows by JAX: layers give the same on both backends."""
    keras.utils.clear_session(free_memory=False)
    model = tf_worker.make_model()
    fixed = [v.value for v in model.non_trainable_variables]
    loss = lambda trained: jnp.sum((model.stateless_call(trained, fixed, rows())[0] - 1) ** 2) / ROWS
    trained, expected = [v.value for v in model.trainable_variables], []
    for _ in range(STEPS):
        value, gradients = jax.value_and_grad(loss)(trained)
        expected.append(float(value))
        trained = [weight - 0.1 * gradient for weight, gradient in zip(trained, gradients, strict=True)]
    for found in workers:
        np.testing.assert_allclose(found["losses"], expected, RTOL)
        for got, want in zip(found["weights"], trained, strict=True):
            np.testing.assert_allclose(got, want, RTOL, atol=1e-6)


def test_draws_differ_by_worker_and_follow_the_rule(workers):
    for index, found in enumerate(workers):
        for number, drawn in enumerate(found["draws"]):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), number), index)
            np.testing.assert_allclose(drawn, jax.random.normal(key, (3,)), 1e-5)


def test_state_agrees(workers):
    expected = rows().mean() * (1 - 0.5**STEPS)
    np.testing.assert_allclose([found["mean"] for found in workers], expected, 1e-5)


def test_collectives_reach_the_other_process(workers):
    for found in workers:
        np.testing.assert_array_equal(np.asarray(found["gathered"], "float32"), rows())
        largest = np.maximum(rows()[: ROWS // 2], rows()[ROWS // 2 :])
        np.testing.assert_array_equal(np.asarray(found["largest"], "float32"), largest)
