"""`autoshard` on eight devices: what it decides, what is compiled, what is trained, what each device holds."""

from __future__ import annotations

import collections
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.distribution import autoshard
from jaxbridge.errors import ShapeError, ShardingError
from tests.distribution.autoshard_models import HIDDEN, MODELS, TIME, VARIANTS, WIDTH, functional, keras_mlp
from tests.distribution.checks import Checks, assert_equal

CHECKS = Checks()

#: The models are small: everything that a kernel has is worth splitting.
SMALL = 1000

#: Sums over devices are made in another order, and errors go through three updates.
RTOL = 2e-4

COLLECTIVES = r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


def mesh(data, model):
    devices = keras.distribution.list_devices()[: data * model]
    return keras.distribution.DeviceMesh((data, model), ["data", "model"], devices)


def plan_of(make, on=None):
    keras.utils.clear_session(free_memory=False)
    return autoshard(make(), on or mesh(1, 4), min_bytes=SMALL)


def splits(report):
    return {row.path: row.spec.index("model") for row in report.rows if row.is_split}


def expected_splits(report, expected):
    return {
        row.path: next(dim for end, dim in expected.items() if f"/{row.path}".endswith(f"/{end}"))
        for row in report.rows
        if any(f"/{row.path}".endswith(f"/{end}") for end in expected)
    }


def inputs_of(model, rows=8):
    spec = model.inputs[0]
    rng = np.random.default_rng(0)
    shape = (rows, *spec.shape[1:])
    return rng.integers(0, 30, shape) if spec.dtype == "int32" else rng.normal(size=shape).astype("float32")


@CHECKS.of(MODELS)
def the_plan_is_the_expected_one(model):
    report = plan_of(model.make).report
    assert_equal(splits(report), expected_splits(report, model.split))
    assert len(splits(report)) >= len(model.split)


@CHECKS.of({f"{name}, {what}": (model, what) for name, model in MODELS.items() for what in ("forward", "gradient")})
def the_compiled_module_has_the_expected_collectives(row):
    model, what = row
    on = mesh(1, 4)
    layout_map, _ = plan_of(model.make, on)
    keras.utils.clear_session(free_memory=False)
    with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
        built = model.make()
    variables = [[v.value for v in each] for each in (built.trainable_variables, built.non_trainable_variables)]
    x = jax.device_put(inputs_of(built), NamedSharding(on.backend_mesh, PartitionSpec("data")))
    forward = lambda trained, rest, x: built.stateless_call(trained, rest, x)[0]
    gradient = lambda trained, rest, x: jax.grad(lambda t: jnp.mean(forward(t, rest, x) ** 2))(trained)
    text = jax.jit(forward if what == "forward" else gradient).lower(*variables, x).compile().as_text()
    found = dict(collections.Counter(re.findall(COLLECTIVES, text)))
    assert_equal(found, {"all-reduce": model.forward + (model.backward if what == "gradient" else 0)})


def losses(model):
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    x = inputs_of(model)
    y = np.random.default_rng(1).normal(size=(8, *model.output_shape[1:])).astype("float32")
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


def bytes_on(device, variables):
    return sum(s.data.nbytes for v in variables for s in v.value.addressable_shards if s.device == device)


@CHECKS.of(MODELS)
def sharded_training_is_unsharded_training(model):
    """And each device holds the bytes that the report promised, of the weights and of both of Adam's moments."""
    keras.utils.set_random_seed(0)
    keras.utils.clear_session(free_memory=False)
    expected = losses(model.make())
    layout_map, report = plan_of(model.make, mesh(2, 4))
    keras.utils.set_random_seed(0)
    keras.utils.clear_session(free_memory=False)
    with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
        built = model.make()
        np.testing.assert_allclose(losses(built), expected, RTOL)
        for device in jax.devices():
            assert_equal(bytes_on(device, built.variables), report.device_bytes)
        trained = bytes_on(jax.devices()[0], built.trainable_variables)
        assert trained < 0.5 * sum(v.value.nbytes for v in built.trainable_variables)
        moments = [v for v in built.optimizer.variables if (v.shape and "moment" in v.path) or "velocity" in v.path]
        assert_equal(bytes_on(jax.devices()[0], moments), 2 * trained)


@CHECKS.of(VARIANTS)
def however_it_is_written_the_plan_is_the_same(row):
    make, expected = row
    report = plan_of(make).report
    assert_equal(splits(report), {f"mlp/params/{name}": dim for name, dim in expected.items()})


def dense_pair(hidden):
    return lambda: functional(
        lambda x: keras.layers.Dense(WIDTH, name="down")(keras.layers.Dense(hidden, name="up")(x)), (WIDTH,)
    )


def attention(heads):
    """Embedded, so that what flows into the attention is no input."""

    def layers(ids):
        x = keras.layers.Embedding(30, WIDTH, name="words")(ids)
        return keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(heads, 8, name="mha")(x, x))

    return lambda: functional(layers, (TIME,), "int32")


UNEVEN = {
    "hidden units": (dense_pair(62), "down/kernel", r"62 cannot be divided by 4"),
    "heads": (attention(3), "mha/query/kernel", r"3 heads cannot be divided by 4"),
    "vocabulary": (attention(4), "words/embeddings", r"30 cannot be divided by 4"),
}


@CHECKS.of(UNEVEN)
def uneven_sizes_are_said(row):
    make, path, text = row
    (planned,) = [row for row in plan_of(make).report.rows if row.path.endswith(path)]
    assert re.search(text, planned.reason), planned.reason


@CHECKS.of()
def what_is_small_is_replicated():
    layout_map, report = autoshard(keras_mlp(), mesh(1, 4))
    assert len(layout_map) == 0 and report.device_bytes == report.bytes
    assert all(row.reason.startswith("small") for row in report.rows)


@CHECKS.of()
def one_device_is_not_split():
    assert len(plan_of(keras_mlp, mesh(8, 1)).layout_map) == 0


@CHECKS.of()
def keys_match_their_variable_alone():
    """Keys of a LayoutMap are regular expressions too, and Keras' names may hold what they are made of."""
    names = ["up.a", "upxa", "up+"]
    make = lambda: functional(
        lambda x: [
            keras.layers.Dense(8, name=f"d{n}")(keras.layers.Dense(HIDDEN, name=name)(x))
            for n, name in enumerate(names)
        ],
        (WIDTH,),
    )
    layout_map, report = plan_of(make)
    for row in report.rows:
        layout = layout_map[row.path]  # raises where two keys match
        assert (layout is not None) == row.is_split and (layout is None or layout.axes == row.spec)
    assert {path.split("/")[-2] for path in splits(report)} > set(names)


@CHECKS.of()
def state_goes_with_what_it_is_combined_with():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x, training: bool = False):
            x = nn.Dense(HIDDEN, name="up")(x)
            x = nn.BatchNorm(use_running_average=not training, name="norm")(x)
            return nn.Dense(WIDTH, name="down")(x)

    report = plan_of(lambda: functional(FlaxLayer(Normed(), name="net"), (WIDTH,))).report
    expected = {
        "net/params/up/kernel": 1,
        "net/params/up/bias": 0,
        "net/params/norm/scale": 0,
        "net/params/norm/bias": 0,
        "net/batch_stats/norm/mean": 0,
        "net/batch_stats/norm/var": 0,
        "net/params/down/kernel": 0,
    }
    assert_equal(splits(report), expected)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="sub")
        self.up, self.down = keras.layers.Dense(HIDDEN, name="up"), keras.layers.Dense(WIDTH, name="down")

    def call(self, inputs):
        return self.down(self.up(inputs["x"]))


@CHECKS.of()
def a_subclassed_model_is_given_its_inputs():
    model, x = Subclassed(), {"x": np.ones((2, WIDTH), "float32")}
    for _ in ("not built", "built"):
        with pytest.raises(ShapeError, match=r"autoshard\(model, mesh, inputs=x\)"):
            autoshard(model, mesh(1, 4))
        report = autoshard(model, mesh(1, 4), inputs=x, min_bytes=SMALL).report
        assert_equal(splits(report), {"sub/up/kernel": 1, "sub/up/bias": 0, "sub/down/kernel": 0})
    assert_equal(model(x).shape, (2, WIDTH))  # built by the first, with values
    assert_equal(model({"x": np.ones((5, WIDTH), "float32")}).shape, (5, WIDTH))  # and for any batch


class Automatic(keras.Model):
    """Named by Keras, with a layer that makes another when it is built, and a draw."""

    def __init__(self):
        super().__init__()
        self.net = FlaxLayer(nn.Dense(HIDDEN))
        self.inner = keras.Sequential([keras.layers.Dropout(0.1), keras.layers.Dense(WIDTH)])

    def call(self, inputs):
        return self.inner(self.net(inputs))


@CHECKS.of({"declared": (keras_mlp, None), "subclassed": (Automatic, keras.KerasTensor((None, WIDTH)))})
def a_function_makes_the_model_without_values(row):
    """The plan, with its names, is that of a model that has values; none is made, and the next model has these names."""
    make, inputs = row
    keras.utils.clear_session(free_memory=False)
    before = {id(array) for array in jax.live_arrays()}
    layout_map, report = autoshard(make, mesh(1, 4), inputs=inputs, min_bytes=SMALL)
    assert_equal([a.shape for a in jax.live_arrays() if id(a) not in before and a.nbytes >= SMALL], [])
    model = make()
    expected, told = autoshard(model, mesh(1, 4), inputs=inputs, min_bytes=SMALL)
    assert_equal(str(report), str(told))
    assert_equal({key: layout.axes for key, layout in layout_map.items()}, {k: v.axes for k, v in expected.items()})
    assert set(splits(report)) <= {variable.path for variable in model.variables} and len(splits(report)) == 3


@CHECKS.of()
def a_mesh_of_jax_is_as_good():
    expected = autoshard(keras_mlp, mesh(2, 4), min_bytes=SMALL)
    given = jax.make_mesh((2, 4), ("data", "model"))
    layout_map, report = autoshard(keras_mlp, given, min_bytes=SMALL)
    assert_equal(str(report), str(expected.report))
    assert_equal(list(layout_map.device_mesh.devices.flat), list(mesh(2, 4).devices.flat))


@CHECKS.of()
def the_report_is_a_table():
    text = str(plan_of(keras_mlp).report)
    assert re.search(r"net/up/kernel +\(16, 64\) +\(-, model\) +4,096 +1,024 +column-parallel", text)
    assert_equal(text.splitlines()[-1].split()[:4], ["in", "all", "8,512", "2,176"])


ERRORS = {
    "not built": (
        lambda: autoshard(keras.Sequential([keras.layers.Dense(2)]), mesh(1, 4)),
        ShapeError,
        r"autoshard\(model, mesh, inputs=x\)",
    ),
    "no variables": (
        lambda: autoshard(functional(keras.layers.ReLU(), (3,)), mesh(1, 4)),
        ShardingError,
        "has no variables to lay out",
    ),
    "no model": (lambda: autoshard("model", mesh(1, 4)), ShardingError, "a function that makes one, got 'model'"),
    "a function that makes none": (lambda: autoshard(lambda: 3, mesh(1, 4)), ShardingError, "and returned 3"),
    **{
        f"no mesh: {given!r}": (
            lambda given=given: autoshard(keras_mlp, given),
            ShardingError,
            r"`mesh` must be a mesh of devices, got .*Write `keras\.distribution\.DeviceMesh\(\(2, 4\)",
        )
        for given in (None, {"data": 2, "model": 4}, AbstractMesh((2, 4), ("data", "model")))
    },
    **{
        f"min_bytes={given!r}": (
            lambda given=given: autoshard(keras_mlp, mesh(1, 4), min_bytes=given),
            ShardingError,
            r"`min_bytes` must be a number of bytes, at least 0, got ",
        )
        for given in (-1, 0.5, True, None)
    },
    "an axis that the mesh has not": (
        lambda: autoshard(keras_mlp(), mesh(1, 4), axis_name="rows"),
        ShardingError,
        r"no axis 'rows'; it has data, model",
    ),
    "a model that does not take the sizes that were assumed": (
        lambda: autoshard(
            functional(
                JaxLayer(lambda params, inputs: inputs.reshape(-1, 7) @ params["w"], params={"w": np.ones((7, 3))}),
                (None,),
            ),
            mesh(1, 4),
        ),
        ShapeError,
        r"(?s)with 16 for unknown sizes.*`inputs=`",
    ),
}


@CHECKS.of(ERRORS)
def mistakes_with_autoshard(row):
    call, error, text = row
    with pytest.raises(error, match=text):
        call()
