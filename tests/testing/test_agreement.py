"""The kit that compares a layer on both backends."""

import flax.linen as nn
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.testing import BackendsDisagree, agreement, assert_backends_agree
from jaxbridge.testing.agreement import WorkerFailed
from tests.cases import CASES

SIZES = ({"b": 2, "t": 5}, {"b": 3, "t": 7})


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        x = nn.Dense(4)(x)
        x = nn.BatchNorm(use_running_average=not training)(x)
        return {"x": nn.Dropout(0.5, deterministic=not training)(x), "top": x.max((1, 2))}


def block():
    return FlaxLayer(Block(), name="net")


def another_branch_at_7():
    return JaxLayer(
        lambda params, inputs: inputs * (2 if inputs.shape[1] == 7 else 1), params={"w": np.ones(2, "float32")}
    )


def broken():
    return JaxLayer(lambda inputs: inputs.no_such_attribute)


def batch(b, t):
    return np.random.default_rng(0).normal(size=(b, t, 3)).astype("float32")


@pytest.mark.slow
def test_a_block_with_state_and_draws_agrees():
    assert_backends_agree(block, batch, SIZES)


def test_a_planted_divergence_is_found_at_its_size():
    with pytest.raises(
        BackendsDisagree, match=r"outputs at inference at b=3, t=7: differs at \(.*on jax.*on tensorflow"
    ):
        assert_backends_agree(another_branch_at_7, batch, SIZES, export=False)


def test_an_error_on_a_backend_is_passed_on():
    with pytest.raises(WorkerFailed, match="no_such_attribute"):
        assert_backends_agree(broken, batch, SIZES, export=False)


def test_a_factory_that_cannot_be_imported_is_refused():
    with pytest.raises(TypeError, match="top level of a module"):
        assert_backends_agree(lambda: block(), batch, SIZES)


# The whole table of models, each by one call of the kit: minutes, since every case starts processes of its own.


def _importable(name, layer):
    """Returns a function that the kit's processes find in this module by its name."""

    def make():
        return layer()

    make.__qualname__ = make.__name__ = name
    return make


MAKERS = {case.name: _importable(f"make_{case.name}", case.layer) for case in CASES}
globals().update({make.__name__: make for make in MAKERS.values()})


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_model_of_the_table_agrees(case):
    sizes = [{"b": 2, "s": 8}, {"b": 3, "s": 8 if case.unknown == (0,) else 12}]
    assert_backends_agree(MAKERS[case.name], lambda b, s: case.args(b, s), sizes)


def test_a_gradient_that_is_zero_but_for_rounding_agrees():
    """It is compared relative to all gradients of its inputs, and to those of no others."""
    tiny, large, wrong = (np.full(2, value, "float32") for value in (2e-4, 1e3, 1.0))
    at, kernel = "gradient at b=2, leaf 'net/params/bias'", "gradient at b=2, leaf 'net/params/kernel'"
    agreement._compare({at: tiny, kernel: large}, {at: -tiny, kernel: large}, 1e-4, 1e-5)
    for others in ({"gradient at b=3, leaf 'net/params/kernel'": large}, {"outputs at inference at b=2": large}):
        with pytest.raises(BackendsDisagree, match="net/params/bias"):
            agreement._compare({at: tiny, **others}, {at: -tiny, **others}, 1e-4, 1e-5)
    with pytest.raises(BackendsDisagree, match="net/params/bias"):
        agreement._compare({at: tiny, kernel: large}, {at: wrong, kernel: large}, 1e-4, 1e-5)
