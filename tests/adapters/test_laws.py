"""Every adapter keeps the laws of jaxbridge.adapters.Adapter, for modules with state, draws and flags."""

import dataclasses
import itertools

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import numpy as np
import pytest
from flax import nnx

from jaxbridge.adapters import Adapted, ModuleOptions, find_adapter
from jaxbridge.adapters.linen import LinenAdapter
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.testing import AdapterCase, LawBroken, check_adapter
from tests.adapters import modules as m

X = (np.random.default_rng(0).normal(size=(5, 3)).astype("float32"),)
VMAP = ModuleOptions(vmap=True)


def nnx_result(module, params, state, inputs):
    module.eval()
    outputs = module(*inputs)
    module.train()
    return outputs


CASES = {
    "linen, a library's module": AdapterCase(lambda: nn.Dense(2), X, expected=lambda mod, p, s, i: mod.apply(p, *i)),
    "linen, state and draws": AdapterCase(
        lambda: m.LinenBlock(inner=nn.Dense(3, dtype="bfloat16")),
        X,
        expected=lambda mod, p, s, i: mod.apply({**p, **s}, *i, train=False),
    ),
    "linen, losses": AdapterCase(m.LinenSowing, X, ModuleOptions(collections={"losses": "loss"})),
    "linen, a late collection": AdapterCase(m.LinenCounter, X, ModuleOptions(collections={"cache": "state"})),
    "linen, two streams": AdapterCase(m.LinenNoise, X),
    "linen, a class": AdapterCase(lambda: m.LinenBlock, X, ModuleOptions(kwargs={"width": 2})),
    "nnx, its own keys": AdapterCase(
        lambda: m.NNXBlock(3, 4, rngs=nnx.Rngs(0)), X, expected=nnx_result, is_saved=False
    ),
    "nnx, seeded": AdapterCase(lambda: m.NNXBlock, X, ModuleOptions(args=(3, 4), seeded=True)),
    "nnx, a class": AdapterCase(lambda: nnx.Linear, X, ModuleOptions(args=(3, 2))),
    "nnx, draws at inference": AdapterCase(lambda: m.NNXNoise, X, ModuleOptions(seeded=True, rngs={"noise": "always"})),
    "haiku, transformed": AdapterCase(
        lambda: hk.transform_with_state(m.haiku_block),
        X,
        is_saved=False,
        expected=lambda mod, p, s, i: mod.apply(p, s, None, *i, is_training=False)[0],
    ),
    "haiku, without state": AdapterCase(lambda: hk.transform(lambda x: hk.Linear(2)(x)), X, is_saved=False),
    "haiku, several functions": AdapterCase(
        lambda: hk.multi_transform(m.autoencoder), X, ModuleOptions(method="encode"), is_saved=False
    ),
    "haiku, a class": AdapterCase(lambda: m.HaikuBlock, X, ModuleOptions(args=(4,))),
    "equinox, an instance": AdapterCase(
        lambda: eqx.nn.Linear(3, 2, key=jax.random.key(0)),
        X,
        VMAP,
        expected=lambda mod, p, s, i: jax.vmap(mod)(*i),
    ),
    "equinox, state and draws": AdapterCase(lambda: m.EquinoxBlock, X, ModuleOptions(args=(3, 4), vmap=True)),
    "equinox, without vmap": AdapterCase(lambda: eqx.nn.Lambda(jax.numpy.tanh), X),
}


@pytest.mark.parametrize("name", CASES)
def test_the_laws_hold(name):
    case = CASES[name]
    check_adapter(find_adapter(case.module()), [case])


class Wrapped(LinenAdapter):
    """An adapter of linen that breaks one law."""

    def __init__(self, change):
        self.change = change

    def adapt(self, module, options):
        adapted = super().adapt(module, options)
        init, resolve = adapted.model.init, adapted.model.resolve
        model = resolve(*jax.eval_shape(lambda: (*init(jax.random.key(0), INPUTS, True), INPUTS)))
        return Adapted(self.change(model), scopes=adapted.scopes)


INPUTS = CallInputs(X)


def changed(apply=None, **fields):
    """Returns a function from a PureModel to one that differs."""

    def change(model: PureModel):
        new = {} if apply is None else {"apply": lambda *args: apply(model.apply, *args)}
        return dataclasses.replace(model, **new, **fields)

    return change


CALLS = []
NUMBERS = itertools.count()


def impure(apply, *args):
    CALLS.append(1)
    outputs, state = apply(*args)
    return outputs + len(CALLS), state


def needs_key(apply, params, state, key, inputs, training):
    outputs, state = apply(params, state, None, inputs, training)
    return outputs + jax.random.normal(key, outputs.shape), state


def grows(apply, params, state, *args):
    outputs, state = apply(params, state, *args)
    return outputs, {**state, "more": outputs}


BROKEN = {
    "Law 5": changed(impure),
    "Law 6": changed(grows),
    "Law 8": changed(rng_streams=("noise",)),
    "Law 9": changed(lambda apply, p, s, k, i, t: (apply(p, s, k, i, t)[0] * float(i.args[0].shape[0]), s)),
    "Law 10": changed(lambda apply, *a: (jax.numpy.sqrt(apply(*a)[0] * 0), a[1])),
    "Law 7": changed(needs_key, rng_streams=("noise",)),
    "Law 11": lambda model: dataclasses.replace(model, identity=next(NUMBERS)),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_found(law):
    with pytest.raises(LawBroken, match=law):
        check_adapter(Wrapped(BROKEN[law]), [AdapterCase(lambda: nn.Dense(2), X)])


def test_an_adapter_that_takes_everything_is_found():
    class Greedy(LinenAdapter):
        def handles(self, module):
            return True

    with pytest.raises(LawBroken, match="Law 1"):
        check_adapter(Greedy(), [AdapterCase(lambda: nn.Dense(2), X)])
