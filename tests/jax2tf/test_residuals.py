"""What the forward pass hands to the backward pass: what JAX saves, no argument, and nothing twice."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

from jaxbridge.jax2tf.gradients import Differentiable
from jaxbridge.jax2tf.lowering import LoweringOptions
from tests.jax2tf.cases import DOTS, GRADIENT, MLP, Case, mlp
from tests.jax2tf.helpers import polymorphic


def structs(case: Case, *, symbolic: bool) -> list[jax.ShapeDtypeStruct]:
    scope = jax.export.SymbolicScope()
    texts = polymorphic(case) if symbolic else [text.replace("b", "3") for text in polymorphic(case)]
    dtypes = case.dtypes or ("float32",) * len(texts)
    return [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), dtype)
        for text, dtype in zip(texts, dtypes, strict=True)
    ]


def residuals(case: Case, *, symbolic: bool = False) -> tuple[list[str], tuple[int, ...]]:
    """The residuals that are outputs of the forward pass, and the arguments that the backward pass takes."""
    function = Differentiable(
        lambda *a: jax.tree.leaves(case.fn(*a)), structs(case, symbolic=symbolic), LoweringOptions()
    )
    form = function.residual
    return arrays(form.forward.out_avals[len(function.out_structs) :]), form.used_args


def test_the_backward_pass_is_traced_once_for_all_that_is_wanted(monkeypatch: pytest.MonkeyPatch):
    """Once per gradient, as it was, 64 layers as one took 29 s to their first step instead of 9."""
    form = Differentiable(
        lambda *args: [mlp(*args)], structs(Case(mlp, MLP), symbolic=True), LoweringOptions()
    ).residual
    traces, backward = [], form._backward
    monkeypatch.setattr(form, "_backward", lambda *values: traces.append(1) or backward(*values))
    for wrt in [(0, 1, 2), (0, 2), (0, 2)]:
        form.backward(wrt)
    assert len(traces) == 2


def arrays(avals: Any) -> list[str]:
    """The types, without scalars: JAX saves literals (1/2, a size) that a compiled function has inside."""
    return sorted(str(aval) for aval in avals if aval.shape)


def saved_by_jax(case: Case) -> list[str]:
    """The leaves of the closure of `jax.vjp`, without those that are arguments and each once."""

    def leaves(*args: Any) -> list[Any]:
        floats = [i for i, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.inexact)]

        def fn(*varying: Any) -> tuple[list[Any], list[Any]]:
            full = list(args)
            for index, value in zip(floats, varying, strict=True):
                full[index] = value
            outs = jax.tree.leaves(case.fn(*full))
            is_float = lambda out: jnp.issubdtype(out.dtype, jnp.inexact)
            return [o for o in outs if is_float(o)], [o for o in outs if not is_float(o)]

        closure = jax.tree.leaves(jax.vjp(fn, *(args[i] for i in floats), has_aux=True)[1])
        fresh = {id(leaf): leaf for leaf in closure if not any(leaf is arg for arg in args)}
        return [jax.random.key_data(f) if jnp.issubdtype(f.dtype, jax.dtypes.prng_key) else f for f in fresh.values()]

    return arrays(jax.make_jaxpr(leaves)(*structs(case, symbolic=False)).out_avals)


@pytest.mark.parametrize("name", list(GRADIENT))
def test_as_many_as_jax_saves(name: str):
    assert residuals(GRADIENT[name])[0] == saved_by_jax(GRADIENT[name])


TABLE = {
    "mlp": (mlp, ["float32[3,3]", "float32[3,4]"], (0, 1, 2)),
    "remat": (jax.checkpoint(mlp), [], (0, 1, 2)),
    "remat_dots": (jax.checkpoint(mlp, policy=DOTS), ["float32[3,4]"], (0, 1, 2)),
}


@pytest.mark.parametrize("name", ["mlp", "remat"])
def test_weights_are_not_returned(name: str):
    fresh, used = residuals(Case(TABLE[name][0], MLP))
    assert used[:2] == (0, 1)
    assert not set(fresh) & {"float32[4,3]"}
    if name == "remat":
        assert fresh == []


def test_policy_of_remat_is_kept():
    """`dots_saveable` keeps products and drops what is cheap."""
    fresh, _ = residuals(Case(TABLE["remat_dots"][0], MLP))
    assert 0 < len(fresh) <= 2
    assert set(fresh) <= {"float32[3,4]", "float32[3,3]"}


def test_a_residual_used_twice_is_returned_once():
    def fn(x, y):
        shared = jnp.exp(x * y)
        return shared * jnp.sin(x), shared * jnp.cos(y), shared

    fresh, used = residuals(Case(fn, ("3", "3")))
    assert fresh == saved_by_jax(Case(fn, ("3", "3")))
    assert used == (0, 1)


def test_sizes_of_residuals_that_tell_no_symbol():
    """Residuals of size b*t tell neither b nor t: the backward pass takes an argument for its sizes alone."""

    def fn(x):
        return jnp.tanh(x.reshape(-1, 3))

    scope = jax.export.SymbolicScope()
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, t, 3", scope=scope), "float32")
    form = Differentiable(lambda x: [fn(x)], [struct], LoweringOptions()).residual
    sizes = {str(size) for aval in form.forward.out_avals for size in aval.shape}
    assert sizes == {"b*t", "3"}
    assert form.used_args == (0,)


def test_argument_is_not_taken_when_the_residuals_tell_its_sizes():
    _, used = residuals(Case(lambda x: jnp.tanh(x), ("b,3",)), symbolic=True)
    assert used == ()


def test_typed_keys_travel_as_their_data():
    fresh, _ = residuals(GRADIENT["remat_dropout"])
    assert all("key" not in text for text in fresh)
