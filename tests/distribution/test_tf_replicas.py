"""What replicas of `tf.distribute` do on the TensorFlow backend."""

import pytest

from tests.distribution import checks, replica_checks

#: Minutes in a process of its own; `.ci/run` runs it in one environment.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return checks.run([replica_checks.__name__], "tensorflow", 1, tmp_path_factory.mktemp("replicas"))


@pytest.mark.parametrize("name", replica_checks.CHECKS)
def test_on_replicas(results, name):
    assert results[name] is None, results[name]
