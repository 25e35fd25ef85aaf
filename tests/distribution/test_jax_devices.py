"""What eight devices do on the JAX backend: collectives, and models that `autoshard` laid out."""

import pytest

from tests.distribution import autoshard_checks, checks, collective_checks

#: Minutes in a process of its own; `.ci/run` runs it in one environment.
pytestmark = pytest.mark.slow

MODULES = (collective_checks, autoshard_checks)
CHECKS = [name for module in MODULES for name in module.CHECKS]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return checks.run([module.__name__ for module in MODULES], "jax", 8, tmp_path_factory.mktemp("devices"))


@pytest.mark.parametrize("name", CHECKS)
def test_on_eight_devices(results, name):
    assert results[name] is None, results[name]


def test_no_check_hides_another():
    assert len(set(CHECKS)) == len(CHECKS)
