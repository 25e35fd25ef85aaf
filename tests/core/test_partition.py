"""The value `Sharding`: what it reads, what it writes, what it refuses; and the constraints that it puts around a function."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxbridge import Sharding
from jaxbridge.core import records, specs
from jaxbridge.errors import PartitionerError, ShardingError

MESH = {"data": 2, "model": 4}
UNCONSTRAINED = P(P.UNCONSTRAINED, "model")

VALUES = {
    "nothing": Sharding(),
    "mesh": Sharding(MESH),
    "flat": Sharding(MESH, params={"Dense_0/kernel": P(None, "model"), "*/bias": P("model")}),
    "product": Sharding(MESH, params={"k": P(("data", "model"), None)}, inputs=P("data"), outputs=UNCONSTRAINED),
    "trees": Sharding(MESH, inputs={"a": P("data"), "b": {"c": P()}}, outputs=(P("data"), P(None))),
    "rules": Sharding(MESH, rules=(("mlp", "model"), ("embed", None), ("batch", ("data", "model")))),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_text_and_back(value):
    assert Sharding.from_json(value.to_json()) == value
    assert Sharding.from_config(value.to_config()) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(Sharding.from_json(value.to_json())) == hash(value)


def test_equal_values_have_one_text():
    one = Sharding(MESH, params={"a": P("data"), "b": P(("model",))}, rules={"x": "data"})
    other = Sharding(MESH, params={"b": P("model"), "a": P("data")}, rules=[("x", "data")])
    assert one == other and one.to_json() == other.to_json()
    assert Sharding({"model": 4, "data": 2}) != Sharding(MESH), "the order of the axes is that of the devices"


def test_a_pytree_and_paths_say_the_same():
    tree = Sharding(MESH, params={"Dense_0": {"kernel": P(None, "model"), "bias": None}})
    assert tree == Sharding(MESH, params={"Dense_0/kernel": P(None, "model")})


class DeviceMesh:
    """What is read of a `keras.distribution.DeviceMesh`."""

    axis_names, shape = ["data", "model"], (2, 4)


@pytest.mark.parametrize(
    "mesh",
    [
        AbstractMesh((2, 4), ("data", "model")),
        DeviceMesh(),
        {"data": np.int64(2), "model": 4},
    ],
    ids=["AbstractMesh", "DeviceMesh", "mapping"],
)
def test_meshes_are_read(mesh):
    assert Sharding(mesh).mesh == MESH


def test_a_mesh_of_jax_is_read_and_made():
    own = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    assert Sharding(own).mesh == {"data": 1, "model": 1}
    assert Sharding(own).device_mesh() == own
    assert Sharding(MESH).abstract_mesh().axis_types == (AxisType.Auto, AxisType.Auto)


RULES = (
    ("batch", "data"),
    ("mlp", "model"),
    ("heads", "model"),
    ("embed", None),
    ("batch", "model"),
    ("all", ("data", "model")),
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (P("embed", "mlp"), P(None, "model")),
        (P("batch", "mlp"), P("data", "model")),
        (P("heads", "mlp"), P(None, "model")),  # the first rule takes the axis, the other dimension stays whole
        (P("data", "batch"), P("data", "model")),  # the second rule for "batch", since its first axis is taken
        (P("all"), P(("data", "model"))),
        (P(("batch", "mlp"), None), P(("data", "model"), None)),
        (UNCONSTRAINED, UNCONSTRAINED),
        (P(None, "model"), P(None, "model")),
    ],
)
def test_rules(spec, expected):
    assert specs.mesh_spec(spec, RULES, MESH, "x") == expected


def test_rules_are_those_of_flax():
    nn = pytest.importorskip("flax.linen")
    for names in (("embed", "mlp"), ("batch", "mlp"), ("heads", "mlp"), ("batch", "heads", "embed"), ("mlp", "batch")):
        assert specs.mesh_spec(P(*names), RULES, MESH, "x") == nn.logical_to_mesh_axes(names, RULES)


WRONG = {
    "no mesh": ({"mesh": 3}, "names with sizes"),
    "a size of 0": ({"mesh": {"data": 0}}, "names with sizes"),
    "missing axis": (
        {"mesh": MESH, "params": {"k": P("modell")}},
        "'modell' is no axis of the mesh {'data': 2, 'model': 4}",
    ),
    "missing axis of a rule": ({"mesh": MESH, "rules": {"mlp": "modell"}}, "the rule|The rule for 'mlp'"),
    "twice": ({"mesh": MESH, "inputs": P("data", "data")}, "twice"),
    "twice by rules": (
        {"mesh": MESH, "inputs": P("model", "m"), "rules": {"m": ("model",)}, "outputs": P("a")},
        "'a' is no axis",
    ),
    "no spec": ({"mesh": MESH, "inputs": "data"}, "PartitionSpec"),
    "no axis": ({"mesh": MESH, "inputs": P(3)}, "3 in its spec"),
    "no rule": ({"mesh": MESH, "rules": [3]}, "pairs"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused(arguments, message):
    with pytest.raises(ShardingError, match=message):
        Sharding(**arguments)


def test_too_few_devices():
    with pytest.raises(ShardingError, match=r"needs 8 devices, and there are 1\."):
        Sharding(MESH).device_mesh(jax.devices()[:1])


def test_without_a_mesh_of_its_own():
    with pytest.raises(ShardingError, match="no mesh of its own"):
        Sharding(inputs=P("data")).annotate(lambda params, x: x)


# The constraints.


def constraints(fn, *args):
    """The spec of every constraint of a function, in the order in which they are traced."""
    equations = jax.make_jaxpr(fn)(*args).jaxpr.eqns
    return [e.params["sharding"].spec for e in equations if e.primitive.name == "sharding_constraint"]


PARAMS = {"Dense_0": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
X = jnp.ones((6, 4))


def dense(params, x):
    return jax.lax.with_sharding_constraint(x @ params["Dense_0"]["kernel"], P("data", "model"))


def test_everything_is_constrained():
    said = Sharding(MESH, params={"*/kernel": P(None, "model")}, inputs=P("data"), outputs=P("data", None))
    assert constraints(said.annotate(dense), PARAMS, X) == [
        P(None, "model"),
        P("data"),
        P("data", "model"),
        P("data", None),
    ]


def test_of_several_inputs_and_outputs_each_has_its_own():
    said = Sharding(MESH, inputs=(P("data"), None, P(None, "model")), outputs={"a": P("data")})
    fn = said.annotate(lambda params, x, y, z: {"a": x + y, "b": z})
    assert constraints(fn, {}, X, X, X) == [P("data"), P(None, "model"), P("data")]


def test_the_gradient_is_traced_later_and_has_them():
    """The context of the first trace is gone when the derivative is traced; a custom rule names its spec without a mesh."""

    @jax.custom_vjp
    def twice(x):
        return x * 2

    def backward(_, g):
        return (jax.lax.with_sharding_constraint(g * 2, P("model")),)

    twice.defvjp(lambda x: (x * 2, None), backward)
    said = Sharding({"model": 2}, params={"w": P("model")})
    fn = said.annotate(lambda params, x: twice(params["w"]) * x)
    gradient = jax.grad(lambda params, x: fn(params, x).sum())
    params = {"w": jnp.ones(4)}
    assert constraints(gradient, params, jnp.ones(4)).count(P("model")) == 3  # forward, its transpose, the rule's own
    np.testing.assert_array_equal(jax.jit(gradient)(params, jnp.ones(4))["w"], np.full(4, 2))


def test_on_one_device_nothing_changes():
    said = Sharding(MESH, params={"*/kernel": P(None, "model")}, inputs=P("data"), outputs=P("data"))
    np.testing.assert_array_equal(jax.jit(said.annotate(dense))(PARAMS, X), np.asarray(X @ PARAMS["Dense_0"]["kernel"]))


def test_outside_of_a_trace_nothing_is_constrained():
    plain = Sharding(MESH, params={"*/kernel": P(None, "model")}).annotate(lambda params, x: x)
    np.testing.assert_array_equal(plain(PARAMS, X), X)


BAD_FIT = {
    "no such leaf": ({"params": {"Dense_0/kernl": P()}}, "'Dense_0/kernl' of `params` names no variable"),
    "two patterns": (
        {"params": {"*": P(), "*kernel": P("data")}},
        "several entries in `params`: '\\*': P\\(\\), '\\*kernel'",
    ),
    "rank": ({"params": {"Dense_0/bias": P(None, "model")}}, r"'Dense_0/bias' of shape \(8,\).* 2 entries"),
    "size": (
        {"params": {"Dense_0/kernel": P(("data", "model"))}},
        r"axis 0 has size 4, .* by 8 \('data' of size 2, 'model'",
    ),
    "feature": ({"inputs": P(None, ("data", "model"))}, r"The input of shape \(6, 4\).*axis 1 has size 4"),
    "no such input": ({"inputs": {"x": P("data")}}, "`inputs` has a spec for 'x'"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_FIT.values(), ids=BAD_FIT)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ShardingError, match=message):
        jax.eval_shape(Sharding(MESH, **arguments).annotate(lambda params, x: x), PARAMS, X)


def test_a_batch_that_cannot_be_split_is_said():
    said = Sharding({"data": 4}, inputs=P("data")).annotate(lambda params, x: x)
    with pytest.warns(UserWarning, match=r"The input of shape \(6, 4\) .* axis 0 has size 6, .* by 4"):
        jax.eval_shape(said, {}, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(said, {}, jnp.ones((8, 4)))


def test_an_exact_path_wins_over_patterns():
    found = specs.variable_specs((("*", P()), ("params/a", P("data"))), ["params/a", "params/b"])
    assert found == {"params/a": P("data"), "params/b": P()}


def test_without_shardy_it_is_refused():
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(PartitionerError, match="jax_use_shardy_partitioner"):
            jax.eval_shape(Sharding(MESH, inputs=P("data")).annotate(lambda params, x: x), {}, X)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_records_as_text():
    record = records.Record("net/head", (("data", 2),), (("net/head/params/k", P(None, "data")),), (("", P("data")),))
    assert records.from_json(records.to_json([record])) == [record]
    assert records.to_json([record]) == records.to_json(records.from_json(records.to_json([record])))
