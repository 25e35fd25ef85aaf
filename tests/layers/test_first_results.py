"""What a person waits for at first: what is compiled while a layer is built and called."""

import logging
import re

import flax.linen as nn
import jax
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer
from jaxbridge.core import compilation
from jaxbridge.core.programs import PROGRAMS


class Block(nn.Module):
    """Its forward pass holds much that depends on no argument."""

    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(7)(nn.LayerNorm()(x))))


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = FlaxLayer(Block(), seed=1)

    def call(self, x):
        return self.block(x)


@pytest.fixture
def compilations(caplog):
    """Names of the functions that XLA has compiled since the fixture was asked for."""
    PROGRAMS.clear()
    compilation._options(jax.default_backend())  # asked once per process, with a compilation of its own
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        yield lambda: re.findall(r"Finished XLA compilation of (\S+)", "\n".join(caplog.messages))


def test_building_compiles_the_initialization_and_nothing_else(compilations):
    keras.Sequential([keras.Input((5,)), FlaxLayer(Block())])
    assert [name for name in compilations() if name != "jit(convert_element_type)"] == ["jit(initialize)"]


def test_a_model_that_fit_builds_compiles_its_initialization_once(compilations):
    model = Unbuilt()
    model.compile("sgd", "mse")
    x = np.ones((4, 5), "float32")
    model.fit(x, x, verbose=0)
    assert compilations().count("jit(initialize)") == 1


def test_where_the_compiler_refuses_the_option_it_compiles_as_usual(monkeypatch):
    lower = jax.stages.Lowered.compile

    def refusing(self, compiler_options=None, **options):
        if compiler_options:
            raise RuntimeError("No such compile option")
        return lower(self, compiler_options, **options)

    compilation._options.cache_clear()
    monkeypatch.setattr(jax.stages.Lowered, "compile", refusing)
    try:
        assert compilation.compiled_for_one_run(lambda x: x + 1, (1,))(1) == 2
    finally:
        compilation._options.cache_clear()
