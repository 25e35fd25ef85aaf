"""`Sharding.annotate` through `jax2tf.convert`, on one device: every form runs, and has the constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import PartitionSpec as P

from jaxbridge import Sharding, jax2tf
from jaxbridge.core.shapes import make_signature
from jaxbridge.export import _jax_private
from jaxbridge.jax2tf.gradients import Differentiable
from jaxbridge.jax2tf.lowering import LoweringOptions

SAID = Sharding({"data": 2, "model": 4}, params={"w": P(None, "model")}, inputs=P("data"), outputs=P("data"))
RNG = np.random.default_rng(0)
W, X = (RNG.normal(size=shape).astype("float32") for shape in ((4, 8), (6, 4)))


@jax.custom_vjp
def scaled(x):
    return x * 3


def scaled_backward(_, g):
    # Traced when the derivative is, long after the function.
    return (jax.lax.with_sharding_constraint(g * 3, P("data", "model")),)


scaled.defvjp(lambda x: (x * 3, None), scaled_backward)


def function(params, x):
    hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ params["w"]), P("data", "model"))
    return scaled(hidden)


def plain(params, x):
    return jnp.tanh(x @ params["w"]) * 3


def value_and_gradient(fn, w, x):
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = fn({"w": w}, x)
        loss = tf.reduce_sum(y**2)
    return y, tape.gradient(loss, w)


FORMS = {
    "eager": lambda fn: fn,
    "function": lambda fn: tf.function(fn, autograph=False),
    "jit_compile": lambda fn: tf.function(fn, autograph=False, jit_compile=True),
}


@pytest.mark.parametrize("shapes", [None, [None, "(b, 4)"]], ids=["fixed", "unknown batch"])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form, shapes):
    converted = jax2tf.convert(SAID.annotate(function), polymorphic_shapes=shapes)
    y, gradient = FORMS[form](lambda w, x: value_and_gradient(converted, w, x))(tf.constant(W), tf.constant(X))
    np.testing.assert_allclose(y, plain({"w": W}, X), rtol=1e-5, atol=1e-6)
    wanted = jax.grad(lambda w: (plain({"w": w}, X) ** 2).sum())(W)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-4)  # sums of squares, in XLA's order


def modules(options):
    signature = make_signature(((4, 8), (None, 4)), ("float32", "float32"))
    flat = Differentiable(lambda w, x: [SAID.annotate(function)({"w": w}, x)], signature.structs(), options)
    return {"plain": flat.plain, "forward": flat.residual.forward, "backward": flat.residual.backward(flat.wrt)}


@pytest.mark.parametrize("name", ["plain", "forward", "backward"])
def test_every_form_has_the_constraints(name):
    """The residual form too: without them XLA would be free to gather what the forward pass has split."""
    found = _jax_private.module_sharding(modules(LoweringOptions())[name].serialized)
    texts = [text.partition("@mesh, ")[2].rstrip(">") for text in found.constraints]
    assert found.meshes == ({"data": 2, "model": 4},) and found.partitions == 1 and not found.is_manual
    assert {'[{}, {"model"}]', '[{"data"}, {}]', '[{"data"}, {"model"}]'} <= set(texts)


def test_an_older_tensorflow_gets_none_of_them():
    """It could not read them; the warning says that a record stays."""
    with pytest.warns(UserWarning, match=r"sharding constraints.*are left out: tensorflow==2.18.*read_sharding"):
        found = modules(LoweringOptions(target="tensorflow==2.18"))
    for module in found.values():
        assert not _jax_private.module_sharding(module.serialized).meshes
        assert not module.has_shardings
