"""The plugin that runs tests once per Keras backend, in a project of its own."""

import os
import re
import subprocess
import sys

import pytest

TESTS = """
import keras, os, pytest

def test_plain():
    assert "--keras-backends-report-to" not in str(os.environ)

def test_with_fixture(keras_backend):
    assert keras.config.backend() == keras_backend

@pytest.mark.keras_backends
def test_fails_on_one():
    assert keras.config.backend() == "jax"

@pytest.mark.keras_backends("tensorflow")
def test_on_one_only():
    assert keras.config.backend() == "tensorflow"

@pytest.mark.keras_backends
@pytest.mark.parametrize("value", [1, pytest.param(2, marks=pytest.mark.keras_backends("jax"))])
def test_one_parameter_on_one_only(keras_backend, value):
    assert value == 1 or keras_backend == "jax"

@pytest.mark.keras_backends("jax")
@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(number):
    if number == 2 and os.environ.get("CRASH"):
        os._exit(3)
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["jaxbridge.testing.pytest_plugin"]\n')
    (tmp_path / "test_layers.py").write_text(TESTS)

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
        result = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
        )
        return result.returncode, dict(re.findall(r"::(\S+) (PASSED|FAILED|ERROR)", result.stdout)), result.stdout

    return run


def test_each_test_runs_once_per_backend_in_its_process(project):
    code, outcomes, output = project("--keras-backends", "jax,tensorflow")
    assert outcomes == {
        "test_plain": "PASSED",
        "test_with_fixture[jax]": "PASSED",
        "test_with_fixture[tensorflow]": "PASSED",
        "test_fails_on_one[jax]": "PASSED",
        "test_fails_on_one[tensorflow]": "FAILED",
        "test_on_one_only[tensorflow]": "PASSED",
        "test_one_parameter_on_one_only[jax-1]": "PASSED",
        "test_one_parameter_on_one_only[jax-2]": "PASSED",
        "test_one_parameter_on_one_only[tensorflow-1]": "PASSED",
        "test_parametrized[jax-1]": "PASSED",
        "test_parametrized[jax-2]": "PASSED",
    }, output
    assert code == 1
    assert "assert 'tensorflow' == 'jax'" in output


def test_tests_for_another_backend_alone_are_left_out(project):
    code, outcomes, output = project("--keras-backends", "jax")
    assert code == 0 and "1 deselected" in output
    assert set(outcomes) == {
        "test_plain",
        "test_with_fixture[jax]",
        "test_fails_on_one[jax]",
        "test_one_parameter_on_one_only[jax-1]",
        "test_one_parameter_on_one_only[jax-2]",
        "test_parametrized[jax-1]",
        "test_parametrized[jax-2]",
    }


def test_a_process_that_dies_fails_its_tests(project):
    _, outcomes, output = project("--keras-backends", "jax", "-k", "parametrized", CRASH="1")
    assert outcomes.get("test_parametrized[jax-1]") == "PASSED"
    assert outcomes.get("test_parametrized[jax-2]") == "FAILED", output
    assert "exit code 3" in output


def test_a_missing_backend_fails(project):
    code, outcomes, output = project("--keras-backends", "nosuch", "-k", "fixture")
    assert outcomes == {"test_with_fixture[nosuch]": "FAILED"}, output
    assert code == 1


def test_without_the_option_tests_run_once_here(project):
    _, outcomes, output = project(KERAS_BACKEND="jax")
    assert outcomes["test_with_fixture"] == "PASSED", output
    assert outcomes["test_plain"] == "PASSED"
