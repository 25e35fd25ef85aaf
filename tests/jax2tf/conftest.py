"""These tests use no Keras: clearing its session between them would cost half of their time (it collects garbage)."""

import pytest


@pytest.fixture(autouse=True)
def fresh_keras():
    """Takes the place of the fixture of that name one folder up."""
