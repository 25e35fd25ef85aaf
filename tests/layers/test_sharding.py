"""What a layer makes of `sharding=` and of the annotations of its module, on one device: numbers, files, messages."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxbridge import FlaxLayer, JaxLayer, Sharding, lower
from jaxbridge.errors import PartitionerError, ShardingError
from tests import carry_cases, harness
from tests.carry_cases import CASES, FIRST, MESH, SECOND

X = carry_cases.batch()

INIT = nn.initializers.lecun_normal()


class Summed(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(8)(inputs["x"] + inputs["y"])


def partitioned(*names):
    return nn.Dense(8, kernel_init=nn.with_partitioning(INIT, names))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numbers_are_those_of_the_network(case):
    """A constraint changes no number; and every kind is understood in the same way."""
    layer = case.layer()
    outputs = harness.numbers(layer(X))
    by_path = {v.path: keras.ops.convert_to_numpy(v) for v in layer.weights}
    kernels = [by_path[f"net/{path}"] for path in case.kernels]
    first, second = (kernel.T if case.transposed else kernel for kernel in kernels)
    biases = [by_path[f"net/{path.rpartition('/')[0]}/bias"] for path in case.kernels]
    np.testing.assert_allclose(outputs, np.tanh(X @ first + biases[0]) @ second + biases[1], rtol=1e-5, atol=1e-6)
    record = layer.sharding_record
    if not case.annotated:
        assert record is None
        return
    wanted = [P(*reversed(spec)) if case.transposed else spec for spec in (FIRST, SECOND)]
    assert record.axes == tuple(MESH.items()) and record.layer == "net"
    assert dict(record.params) == dict(zip((f"net/{path}" for path in case.kernels), wanted, strict=True))
    assert dict(record.inputs) == {"": P("data")} and dict(record.outputs) == {"": P("data", None)}


@pytest.mark.parametrize("jit_compile", [False, True])
def test_training_is_that_of_the_plain_layer(jit_compile):
    losses = []
    for sharding in (carry_cases.said(), "ignore"):
        layer = FlaxLayer(carry_cases.Partitioned(), sharding=sharding, name="net", seed=0)
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
        losses.append(model.fit(X, np.ones((8, 8)), batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert losses[0][1] < losses[0][0]


def test_gradients_are_those_of_the_plain_layer():
    shardings = carry_cases.said(rules=carry_cases.RULES), "ignore"
    layers = [_built(FlaxLayer(carry_cases.Logical(), sharding=sharding, seed=0)) for sharding in shardings]
    grads = [harness.layer_gradients(layer, (X,), False) for layer in layers]
    for one, other in zip(*map(jax.tree.leaves, grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _built(layer):
    layer(X)
    return layer


def test_attention_of_linen_is_initialised_on_a_mesh():
    """With a mesh in context linen constrains the flat kernel of a DenseGeneral by the spec of its real shape, and fails."""
    split = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model", None))
    attention = nn.MultiHeadDotProductAttention(4, kernel_init=split, out_kernel_init=INIT)
    layer = _built(FlaxLayer(attention, sharding=Sharding(MESH), name="net"))
    assert dict(layer.sharding_record.params) == {
        f"net/params/{name}/kernel": P(None, "model", None) for name in ("key", "query", "value")
    }
    params = jax.tree.map(keras.ops.convert_to_numpy, layer.params)
    np.testing.assert_allclose(harness.numbers(layer(X)), attention.apply(params, X), rtol=1e-4, atol=1e-6)


def test_state_is_constrained_too():
    def call(params, state, inputs):
        return inputs @ params["w"], {"mean": state["mean"] + 1}

    def init(rng, inputs):
        return {"w": jnp.ones((4, 8))}, {"mean": jnp.zeros(8)}

    layer = _built(JaxLayer(call, init, sharding=Sharding(MESH, params={"state/mean": P("model")}), name="net"))
    assert dict(layer.sharding_record.params) == {"net/state/mean": P("model")}
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.non_trainable_weights[0]), np.ones(8))


@pytest.mark.parametrize("sharding", [carry_cases.said(), "ignore"], ids=["a value", "ignore"])
def test_it_is_saved(sharding, tmp_path):
    model = keras.Sequential([keras.Input((4,)), FlaxLayer(carry_cases.Partitioned(), sharding=sharding)])
    model.save(tmp_path / "model.keras")
    custom = {"Partitioned": carry_cases.Partitioned}
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects=custom)
    assert again.layers[-1].sharding == sharding
    np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))


def test_given_variables_keep_their_boxes():
    module = carry_cases.Partitioned()
    variables = module.init(jax.random.key(1), X)
    layer = FlaxLayer(module, variables=variables, sharding=Sharding(MESH), name="net")
    assert not any(map(nn.meta.is_axis_metadata, jax.tree.leaves(layer.params, is_leaf=nn.meta.is_axis_metadata)))
    np.testing.assert_allclose(harness.numbers(layer(X)), module.apply(variables, X), rtol=1e-5)
    assert dict(layer.sharding_record.params) == {
        "net/params/Dense_0/kernel": FIRST,
        "net/params/Dense_1/kernel": SECOND,
    }


def test_what_the_user_says_wins_over_the_module():
    sharding = Sharding(MESH, params={"Dense_0/kernel": P("model", None)})
    layer = _built(FlaxLayer(carry_cases.Partitioned(), sharding=sharding, name="net"))
    assert dict(layer.sharding_record.params)["net/params/Dense_0/kernel"] == P("model", None)


# Without a mesh.


def test_annotations_without_a_mesh_are_said():
    with pytest.warns(UserWarning, match=r"'params/kernel': P\(None, 'model'\).*no mesh is known.*sharding='ignore'"):
        layer = _built(FlaxLayer(partitioned(None, "model"), name="net"))
    assert layer.sharding_record is None


def test_a_layer_that_was_lowered_on_a_mesh_is_built_without_it():
    layer = FlaxLayer(partitioned(None, "model"), name="net", sharding=None)
    mesh = keras.distribution.DeviceMesh((1,), ("model",), ["cpu:0"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow does not distribute, and the second time there is no mesh
        with keras.distribution.ModelParallel(layout_map=keras.distribution.LayoutMap(mesh)).scope():
            lower(layer, keras.KerasTensor((2, 4)))
        layer.build((2, 4))
    assert layer.sharding_record is None and not layer._runtime.partitioning.placement.axes


@pytest.mark.parametrize("options", [{"sharding": "ignore"}, {"sharding": Sharding(MESH)}], ids=["ignore", "mesh"])
def test_there_is_a_way_without_a_warning(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _built(FlaxLayer(partitioned(None, "model"), **options))


def test_on_one_device_no_batch_is_too_odd():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = _built(FlaxLayer(nn.Dense(8), sharding=carry_cases.said()))
        assert layer(X[:3]).shape == (3, 8)


def test_a_batch_that_never_can_be_split_is_said():
    layer = FlaxLayer(nn.Dense(8), sharding=Sharding(MESH, inputs=P("data")))
    with pytest.warns(UserWarning, match=r"The input of shape \(3, 4\).*axis 0 has size 3.*multiple of 2"):
        keras.Sequential([keras.Input((4,), batch_size=3), layer])(X[:3])


# Mistakes. Each message names the leaf, the axis and the sizes.


def flax(module, **said):
    return lambda: FlaxLayer(module, name="net", sharding=Sharding(MESH, **said))


WRONG = {
    "an axis of the module is missing": (
        flax(partitioned(None, "modell")),
        "'params/kernel' of layer 'net' has the spec P(None, 'modell'), and 'modell' is no axis of the mesh {'data': 2, 'mo",
    ),
    "a logical axis without a rule": (
        flax(nn.Dense(8, kernel_init=nn.with_logical_partitioning(INIT, ("embed", "mlp"))), rules={"mlp": "model"}),
        "'embed' is no axis of the mesh {'data': 2, 'model': 4}. Write one of its axes, give a mesh that has it, or a rule",
    ),
    "a size": (
        flax(nn.Dense(10), params={"kernel": P(None, "model")}),
        "'params/kernel' of shape (4, 10) cannot be split by P(None, 'model'): axis 1 has size 10, which is not divisible by 4",
    ),
    "a rank": (flax(nn.Dense(8), params={"bias": P(None, "model")}), "'params/bias' of shape (8,) has the spec"),
    "no such variable": (flax(nn.Dense(8), params={"kernl": P()}), "The variables are: params/bias, params/kernel."),
    "an output": (
        flax(nn.Dense(10), outputs=P(None, "model")),
        "The output of shape (8, 10) cannot be split by P(None, 'model'): axis 1 has size 10",
    ),
    "specs by name for one input": (
        flax(nn.Dense(8), inputs={"x": P()}),
        "`inputs` has a spec for 'x', and there is one input, in no structure that has such a place. One input takes one "
        "PartitionSpec: `inputs=PartitionSpec('data')`.",
    ),
    "two specs for one input": (flax(nn.Dense(8), inputs=(P(), P())), "One input takes one PartitionSpec"),
    "two specs for one output": (flax(nn.Dense(8), outputs=[P(), P()]), "One output takes one PartitionSpec"),
    "an input that is not there": (
        lambda: lambda x: flax(Summed(), inputs={"z": P()})()({"x": x, "y": x}),
        "`inputs` has a spec for 'z'; the inputs are: x, y.",
    ),
    "no mesh": (
        lambda: FlaxLayer(nn.Dense(8), name="net", sharding=Sharding(inputs=P("data"))),
        "The `sharding` of layer 'net' has no mesh, and no Keras distribution is in effect",
    ),
    "no sharding": (lambda: FlaxLayer(nn.Dense(8), sharding=3), "must be a jaxbridge.Sharding, 'ignore' or None, got 3"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_named(make, message):
    with pytest.raises(ShardingError) as caught:
        make()(X)
    assert message in str(caught.value).replace("(batch, 10)", "(8, 10)")  # sizes are those of the trace


def test_nothing_is_made_of_a_mistake():
    layer = flax(nn.Dense(10), params={"kernel": P(None, "model")})()
    with pytest.raises(ShardingError):
        layer(X)
    assert layer.weights == [] and not layer.built


def test_without_shardy_it_is_refused():
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(PartitionerError, match="jax_use_shardy_partitioner"):
            FlaxLayer(nn.Dense(8), sharding=carry_cases.said())(X)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
