"""The same two-layer network, annotated in every way that there is; and what it must become."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxbridge import FlaxLayer, JaxLayer, ModuleLayer, Sharding

MESH = {"data": 2, "model": 4}
FIRST, SECOND = P(None, "model"), P("model", None)
RULES = {"embed": None, "mlp": "model", "batch": "data"}
INIT = nn.initializers.lecun_normal()


class Partitioned(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = jnp.tanh(nn.Dense(16, kernel_init=nn.with_partitioning(INIT, tuple(FIRST)))(x))
        return nn.Dense(8, kernel_init=nn.with_partitioning(INIT, tuple(SECOND)))(h)


class Logical(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = jnp.tanh(nn.Dense(16, kernel_init=nn.with_logical_partitioning(INIT, ("embed", "mlp")))(x))
        h = nn.with_logical_constraint(h, ("batch", "mlp"))
        return nn.Dense(8, kernel_init=nn.with_logical_partitioning(INIT, ("mlp", "embed")))(h)


class NNX(nnx.Module):
    def __init__(self, spelling: str, first: Any, second: Any, *, rngs: nnx.Rngs):
        annotated = lambda names: nnx.with_metadata(INIT, **{spelling: names})
        self.a = nnx.Linear(4, 16, kernel_init=annotated(first), rngs=rngs)
        self.b = nnx.Linear(16, 8, kernel_init=annotated(second), rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


class Equinox(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.a, self.b = eqx.nn.Linear(4, 16, key=first), eqx.nn.Linear(16, 8, key=second)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


def init(rng, inputs):
    first, second = jax.random.split(rng)
    return {
        "a": {"kernel": INIT(first, (inputs.shape[-1], 16)), "bias": jnp.zeros(16)},
        "b": {"kernel": INIT(second, (16, 8)), "bias": jnp.zeros(8)},
    }


def call(params, inputs):
    h = jnp.tanh(inputs @ params["a"]["kernel"] + params["a"]["bias"])
    return h @ params["b"]["kernel"] + params["b"]["bias"]


def call_constrained(params, inputs):
    h = jnp.tanh(inputs @ params["a"]["kernel"] + params["a"]["bias"])
    h = jax.lax.with_sharding_constraint(h, P("data", "model"))
    return h @ params["b"]["kernel"] + params["b"]["bias"]


def said(**more: Any) -> Sharding:
    return Sharding(MESH, inputs=P("data"), outputs=P("data", None), **more)


def equinox_specs() -> Any:
    """A pytree of specs in the structure of the module; Equinox' kernels are transposed."""
    specs = jax.tree.map(lambda _: None, Equinox(jax.random.key(0)))
    where = lambda module: (module.a.weight, module.b.weight)
    return eqx.tree_at(where, specs, (P("model", None), P(None, "model")), is_leaf=lambda node: node is None)


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to annotate.

    Attributes:
        name: what it is called in the docs.
        layer: makes the layer.
        inner: the constraints of the module in the order of params, inputs, inside, outputs; of the axes split.
        kernels: the path below the layer of each kernel.
        transposed: whether the kernels are transposed.
    """

    name: str
    layer: Callable[[], Any]
    kernels: tuple[str, str]
    inside: bool = False
    transposed: bool = False
    annotated: bool = True


def _older_spelling() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of flax, which this is about
        names = ("sharding", ("embed", "mlp"), ("mlp", "embed"))
        return FlaxLayer(NNX, args=names, sharding=said(rules=RULES), name="net", seed=0)


CASES = (
    Case("linen `nn.with_partitioning`", lambda: FlaxLayer(Partitioned(), sharding=said(), name="net", seed=0),
         ("params/Dense_0/kernel", "params/Dense_1/kernel")),
    Case("linen logical axes with rules", lambda: FlaxLayer(Logical(), sharding=said(rules=RULES), name="net", seed=0),
         ("params/Dense_0/kernel", "params/Dense_1/kernel"), inside=True),
    Case("nnx `out_sharding`",
         lambda: FlaxLayer(NNX, args=("out_sharding", FIRST, SECOND), sharding=said(), name="net", seed=0),
         ("params/a/kernel", "params/b/kernel")),
    Case("nnx `sharding`, logical, with rules", _older_spelling, ("params/a/kernel", "params/b/kernel")),
    Case("Equinox, a pytree of specs",
         lambda: ModuleLayer(Equinox, vmap=True, sharding=said(params=equinox_specs()), name="net", seed=0),
         ("params/a/weight", "params/b/weight"), transposed=True),
    Case("functions, path patterns, and a bare spec inside",
         lambda: JaxLayer(
             call_constrained, init, sharding=said(params={"a/*kernel": FIRST, "b/*kernel": SECOND}), name="net", seed=0),
         ("params/a/kernel", "params/b/kernel"), inside=True),
    Case("nothing (control)", lambda: JaxLayer(call, init, name="net", seed=0),
         ("params/a/kernel", "params/b/kernel"), annotated=False),
)  # fmt: skip


def model(case: Case) -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), case.layer()], name="m")


def batch(rows: int = 8) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
