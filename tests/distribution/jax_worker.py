"""Writes what the tests of layouts ask, from a process with 8 virtual CPUs: `python -m tests.distribution.jax_worker FILE`.

One process for all of them: it takes longer to start than they take to run.
"""

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbridge
from jaxbridge.distribution import (
    _keras_private,
    backend_layout,
    backend_mesh,
    compiled_shardings,
    describe_layouts,
    keras_layout,
    keras_mesh,
    layout_of,
)
from jaxbridge.distribution._keras_private import PlacedVariable
from jaxbridge.layers.variables import PartitionedTree, VariableTree
from tests.distribution import carried, scopes
from tests.distribution.checks import message

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "sharding.md"

X = np.random.RandomState(0).rand(16, 16).astype("float32")
Y = np.ones((16, 8), "float32")


class Net(nn.Module):
    """A column-parallel and a row-parallel product, with state between them."""

    @nn.compact
    def __call__(self, x, training: bool = False):
        x = nn.Dense(32, name="up")(x)
        x = nn.BatchNorm(use_running_average=not training, name="norm")(x)
        return nn.Dense(8, name="down")(nn.relu(x))


LAYOUTS = {
    ".*/params/up/kernel": (None, "model"),
    ".*/params/up/bias": ("model",),
    ".*/(params|batch_stats)/norm/.*": ("model",),
    ".*/params/down/kernel": ("model", None),
    "m/first/params/w": ("data", "model"),
    "m/first/state/mean": ("model",),
}


def device_mesh(shape: tuple[int, ...] = (2, 4), names: tuple[str, ...] = ("data", "model"), count: int = 8) -> Any:
    return keras.distribution.DeviceMesh(shape, names, keras.distribution.list_devices()[:count])


def layout_map(layouts: dict[str, Any] = LAYOUTS, mesh: Any = None) -> Any:
    result = keras.distribution.LayoutMap(mesh or device_mesh())
    for key, axes in layouts.items():
        result[key] = axes
    return result


def model_parallel(layouts: dict[str, Any] = LAYOUTS, shape: tuple[int, int] = (2, 4)) -> Any:
    return keras.distribution.ModelParallel(layout_map=layout_map(layouts, device_mesh(shape)), batch_dim_name="data")


def scaled(params, state, inputs, training):
    mean = state["mean"]
    if training:
        mean = 0.9 * mean + 0.1 * inputs.mean(0)
    return (inputs - mean) @ params["w"], {"mean": mean}


def init_scaled(rng, inputs):
    width = inputs.shape[-1]
    return {"w": jax.random.normal(rng, (width, 16)) / 4}, {"mean": jnp.zeros((width,))}


def make_model() -> Any:
    keras.utils.set_random_seed(0)
    first = jaxbridge.JaxLayer(scaled, init_scaled, seed=1, name="first")
    return keras.Sequential([keras.Input((16,)), first, jaxbridge.FlaxLayer(Net(), seed=2, name="net")], name="m")


def trained(distribution: Any) -> tuple[Any, dict[str, Any]]:
    keras.distribution.set_distribution(distribution)
    model = make_model()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    return model, {
        "losses": history.history["loss"],
        "specs": {v.path: spec(v.value) for v in variables},
        "shards": {v.path: v.value.sharding.shard_shape(v.shape) for v in variables},
        "bytes": sum(bytes_on_first_device(v.value) for v in model.variables),
        "reported_bytes": describe_layouts(model).device_bytes,
        "all_bytes": sum(bytes_on_first_device(v.value) for v in variables),
    }


def spec(array: Any) -> list[Any] | None:
    """The spec without trailing Nones; None where the array is on one device."""
    if not isinstance(array.sharding, NamedSharding):
        return None
    axes = [list(axis) if isinstance(axis, tuple) else axis for axis in array.sharding.spec]
    while axes and axes[-1] is None:
        axes.pop()
    return axes


def bytes_on_first_device(array: Any) -> int:
    first = jax.devices()[0]
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.device == first)


def said(fn: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fn()
    return result, [str(warning.message) for warning in caught]


def training() -> dict[str, Any]:
    """The same training without a distribution, with the batch split, and with the variables split too."""
    found = {
        "alone": trained(None)[1],
        "data": trained(keras.distribution.DataParallel(device_mesh((8,), ("batch",))))[1],
    }
    model, found["model"] = trained(model_parallel())
    report = describe_layouts(model)
    found["model"]["sources"] = {row.path: [row.source, row.key] for row in report.rows}
    found["model"]["text"] = str(report)
    # A key for a layer's output is Keras' business, and matches.
    both = {".*/down/bias": (None,), ".*/down/b.*": (None,)}
    layouts = {**LAYOUTS, **both, "m/net/output": ("data", None), "typo/.*": ("model",)}
    report, texts = said(lambda: describe_layouts(model, layout_map(layouts)))
    found["checked"] = {"unmatched": report.unmatched, "overlapping": report.overlapping, "warnings": texts}
    return found


def compiled() -> dict[str, Any]:
    """What the compiler makes of one call on a replicated input: with layouts, and in the control without."""
    found = {}
    for name, distribution in (("model", model_parallel()), ("alone", None)):
        keras.distribution.set_distribution(distribution)
        layer = jaxbridge.FlaxLayer(Net(), seed=2, name="net")
        layer.build((16, 16))
        x = jnp.asarray(X)
        if distribution is not None:
            x = jax.device_put(X, NamedSharding(backend_mesh(distribution.device_mesh), P()))

        def call(trainable, rest, x, layer=layer):
            return layer.stateless_call(trainable, rest, x)[0]

        values = [[v.value for v in group] for group in (layer.trainable_variables, layer.non_trainable_variables)]
        text = jax.jit(call).lower(*values, x).compile().as_text()
        up = jaxbridge.JaxLayer(lambda params, inputs: inputs @ params["w"], params={"w": np.ones((16, 32), "float32")})
        if distribution is not None:
            keras.distribution.set_distribution(model_parallel({".*/w": (None, "model")}))
            up.build((16, 16))
        output = up(x)
        found[name] = {
            "dots": sorted(
                {
                    part.split("{")[0]
                    for line in text.splitlines()
                    if " dot(" in line
                    for part in line.split()
                    if part.startswith("f32[")
                }
            ),
            "all_reduce": "all-reduce(" in text,
            "partitions": "num_partitions=8" in text,
            "output": spec(output),
            "output_shard": output.sharding.shard_shape(output.shape),
        }
    return found


def initialisation() -> dict[str, Any]:
    """Builds where an array that moves from one device to others is an error, so that none can have been whole on one."""
    found: dict[str, Any] = {}
    keras.distribution.set_distribution(model_parallel({".*w": ("data", "model")}))
    whole = jnp.ones((16, 32))
    given = {"w": (np.arange(512, dtype="float32") % 256).reshape(16, 32)}  # bfloat16 holds them all
    calls = {"w": lambda params, inputs: inputs @ params["w"]}
    placed = NamedSharding(backend_mesh(device_mesh()), P("data", "model"))
    in_shards = jax.device_put(given, placed)
    layers = {
        "init_fn": jaxbridge.JaxLayer(
            calls["w"], lambda rng, inputs: {"w": jax.random.normal(rng, (16, 32))}, seed=3, name="a"
        ),
        "given": jaxbridge.JaxLayer(calls["w"], params=given, name="b"),
        "bfloat16": jaxbridge.JaxLayer(calls["w"], params=given, name="c", dtype="bfloat16"),
        "in_shards": jaxbridge.JaxLayer(calls["w"], params=in_shards, name="e"),
    }
    with jax.transfer_guard_device_to_device("disallow_explicit"):
        for name, layer in layers.items():
            layer.build((8, 16))
            w = layer.params["w"].value
            found[name] = [spec(w), bytes_on_first_device(w), np.asarray(w, "float32").tolist()]
        # As in `fit` of a model that is not built: Keras makes the values when the symbolic call is over.
        deferred = jaxbridge.JaxLayer(calls["w"], params=given, name="d")
        with keras.StatelessScope():
            deferred.build((8, 16))
        w = deferred.params["w"].value
        found["deferred"] = [spec(w), bytes_on_first_device(w), np.asarray(w).tolist()]
        found["control"] = message(lambda: jax.device_put(whole, placed))
    given["w"][:] = -1  # what the user does with the arrays later is no matter of the variables
    found["kept"] = [np.asarray(layers[name].params["w"].value).tolist() for name in ("given", "in_shards")]
    shards = zip(
        in_shards["w"].addressable_shards, layers["in_shards"].params["w"].value.addressable_shards, strict=True
    )
    found["shared"] = [a.data.unsafe_buffer_pointer() == b.data.unsafe_buffer_pointer() for a, b in shards]
    keras.distribution.set_distribution(None)
    alone = jaxbridge.JaxLayer(
        calls["w"], lambda rng, inputs: {"w": jax.random.normal(rng, (16, 32))}, seed=3, name="a"
    )
    alone.build((8, 16))
    found["alone"] = np.asarray(alone.params["w"].value).tolist()
    found["large"] = large_variables(placed)
    return found


class Zeros(keras.initializers.Initializer):
    def __init__(self):
        self.traced: list[bool] = []

    def __call__(self, shape, dtype=None):
        value = jnp.zeros(shape, dtype)
        self.traced.append(isinstance(value, jax.core.Tracer))
        return value


def large_variables(layout: Any) -> dict[str, list[bool]]:
    """Whether the initializer of a large variable was traced, for our class and for that of Keras."""
    found = {}
    for kind in (PlacedVariable, keras.Variable):
        initializer = Zeros()
        kind(initializer, shape=(8, 1 << 20), dtype="float32", layout=layout)  # 32 MB, 256 MB over the mesh
        found[kind.__name__] = initializer.traced
    return found


def annotations() -> dict[str, Any]:
    """Precedence: a key, then the annotation, then replicated; and several axes for one dimension."""
    tree = {name: np.zeros((8, 8), "float32") for name in ("keyed", "kept_whole", "annotated", "product", "plain")}
    hints = {
        "params/keyed": P("model"),
        "params/kept_whole": P("model"),
        "params/annotated": P(None, "model"),
        "params/product": P(("data", "model")),
    }

    def make() -> Any:
        variables = VariableTree(PartitionedTree(tree), prefix="params", parent="net", annotations=hints)
        with keras.name_scope("net"):
            variables.create(PartitionedTree(tree).arrays.__getitem__, trainable=True, float_dtype=None, autocast=False)
        return variables

    keras.distribution.set_distribution(
        model_parallel({"net/params/keyed": ("data", None), "net/params/kept_w.*": (None, None)})
    )
    found = {
        variable.path: [spec(variable.value), decision.source]
        for made in [make()]
        for variable, decision in zip(made.variables, made.decisions, strict=True)
    }
    product = next(v for v in make().variables if v.name == "product")
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build([product])
    found["layout_of_product"] = str(type(layout_of(product)).__name__)
    found["slot_of_product"] = spec(optimizer.variables[-1].value)
    keras.distribution.set_distribution(None)
    found["without"] = [spec(v.value) for v in make().variables]
    return found


def saving() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.weights.h5")
        keras.distribution.set_distribution(model_parallel())
        saved = make_model()
        for variable in saved.weights:
            variable.assign(variable * 1.5 + 0.25)
        saved.save_weights(path)
        keras.distribution.set_distribution(model_parallel(shape=(4, 2)))
        loaded = make_model()
        before = [np.asarray(variable) for variable in loaded.weights]
        with jax.transfer_guard_device_to_device("disallow_explicit"):
            loaded.load_weights(path)
        pairs = list(zip(loaded.weights, saved.weights, strict=True))
        return {
            "equal": [bool(np.all(np.asarray(v) == np.asarray(w))) for v, w in pairs],
            "equal_before": [bool(np.all(b == np.asarray(w))) for b, (_, w) in zip(before, pairs, strict=True)],
            "specs": {v.path: spec(v.value) for v in loaded.weights},
            "shards": {v.path: v.value.sharding.shard_shape(v.shape) for v in loaded.weights},
        }


def native() -> dict[str, Any]:
    mesh, same = device_mesh(), device_mesh()
    layout = keras.distribution.TensorLayout((None, "model"), mesh)
    ours = backend_layout(layout)
    back = keras_layout(NamedSharding(jax.make_mesh((4, 2), ("a", "b")), P("b", None)))
    variable = keras.Variable(np.zeros((8, 8), "float32"), layout=ours)
    return {
        "kind": type(backend_mesh(mesh)).__name__,
        "auto": [str(kind) for kind in backend_mesh(mesh).axis_types],
        "cached": backend_mesh(mesh) is backend_mesh(same) and ours is backend_layout(layout),
        "layout": [type(ours).__name__, list(ours.spec)],
        "back": [
            list(back.axes),
            list(back.device_mesh.shape),
            list(back.device_mesh.axis_names),
            list(back.device_mesh.devices.flat),
        ],
        "mesh_back": [
            list(keras_mesh(backend_mesh(mesh)).shape),
            list(keras_mesh(backend_mesh(mesh)).devices.flat) == list(mesh.devices.flat),
        ],
        "layout_of": list(layout_of(variable).axes),
        "product": message(lambda: keras_layout(NamedSharding(backend_mesh(mesh), P(("data", "model"))))),
        "no_mesh": message(lambda: backend_layout(keras.distribution.TensorLayout((None, "model")))),
        "unnamed": message(lambda: keras_layout(jnp.zeros(3).sharding)),
        "few": message(
            lambda: backend_mesh(keras.distribution.DeviceMesh((16,), ["x"], [f"cpu:{n}" for n in range(16)]))
        ),
    }


def ragged() -> dict[str, str]:
    """What Keras says of a batch that it cannot split, for native layers and ours: `docs/sharding.md` tells of it."""
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    layers = {"native": keras.layers.Dense(8), "ours": jaxbridge.FlaxLayer(nn.Dense(8))}
    built = {name: keras.Sequential([keras.Input((16,)), layer]) for name, layer in layers.items()}
    return {
        name: message(lambda model=model: model.predict(X[:12], batch_size=8, verbose=0))
        for name, model in built.items()
    }


def private() -> dict[str, bool]:
    distribution = model_parallel({})
    layout = backend_layout(keras.distribution.TensorLayout(("model",), distribution.device_mesh))
    variable, moved = (keras.Variable(np.zeros(8, "float32"), layout=given) for given in (layout, None))
    _keras_private.assign_layout(moved, layout)
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build([moved])
    return {
        "layout_of_a_variable": _keras_private.assigned_layout(variable) == layout,
        "layout_map": list(_keras_private.layout_map_of(model_parallel()) or ()) == list(LAYOUTS),
        "keeps_slots": spec(optimizer.variables[-1].value) == ["model"],
        "moves": spec(moved.value) == ["model"],
    }


def errors() -> dict[str, str]:
    def build(distribution: Any, **layouts: Any) -> str:
        keras.distribution.set_distribution(distribution)
        layer = jaxbridge.FlaxLayer(nn.Dense(6), name="net")
        return message(lambda: layer.build((8, 16)))

    half = device_mesh((2, 2), count=4)
    other = {".*kernel": keras.distribution.TensorLayout((None, "model"), half)}
    return {
        "indivisible": build(model_parallel({".*kernel": (None, "model")})),
        "rank": build(model_parallel({".*bias": (None, "model")})),
        "twice": build(model_parallel({".*kernel": ("model", "model")})),
        "overlap": build(model_parallel({".*kernel": ("model", None), "net/.*": (None,)})),
        "exact": build(model_parallel({".*kernel": (None, "model"), "net/params/kernel": ("model", None)})),
        "other_devices": build(model_parallel(other)),
        "bad_key": build(model_parallel({"*kernel": ("model", None)})),
    }


class OwnRules(keras.distribution.ModelParallel):
    """A user's distribution with rules of its own."""

    def get_variable_layout(self, variable):
        axes = [None] * len(variable.shape)
        if variable.path.endswith("kernel"):
            axes[0] = "model"
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def own_rules() -> list[Any]:
    keras.distribution.set_distribution(OwnRules(layout_map=layout_map({}), batch_dim_name="data"))
    layer = jaxbridge.FlaxLayer(nn.Dense(8), name="net")
    layer.build((8, 16))
    return [[v.path, spec(v.value), v.layout_decision.source, v.layout_decision.key] for v in layer.weights]


def inferred() -> dict[str, Any]:
    distribution = model_parallel({".*kernel": (None, "model")})
    keras.distribution.set_distribution(distribution)
    layer = jaxbridge.FlaxLayer(nn.Dense(16), seed=1, name="net")
    layer.build((8, 16))
    mesh = backend_mesh(distribution.device_mesh)
    x = np.random.RandomState(1).rand(8, 16).astype("float32")
    rows = NamedSharding(mesh, P("data"))
    half = backend_mesh(device_mesh((2, 2), count=4))
    arrays = {
        "numpy": x,
        "device_put": jax.device_put(x, rows),
        "jit": jax.jit(lambda x: x * 1, out_shardings=rows)(x),
        "process_local": jax.make_array_from_process_local_data(rows, x),
        "product": jax.device_put(x, NamedSharding(mesh, P(("data", "model")))),
        "other_names": jax.device_put(x, NamedSharding(backend_mesh(device_mesh((8,), ("n",))), P("n"))),
        "one_device": jax.device_put(x, jax.devices()[1]),
        "half": jax.device_put(x, NamedSharding(half, P("data"))),
        "half_other_names": jax.device_put(x, NamedSharding(backend_mesh(device_mesh((4,), ("n",), 4)), P("n"))),
    }
    if hasattr(jax, "pmap"):
        arrays["pmap"] = jax.pmap(lambda x: x * 1)(x)
    expected = x @ next(np.asarray(v.value) for v in layer.weights if v.name == "kernel")
    found = {}
    for name, array in arrays.items():
        output, texts = said(lambda array=array: layer(array))
        found[name] = [spec(output), bool(np.allclose(output, expected, rtol=1e-5, atol=1e-5)), texts]
    # A row-parallel kernel splits the input it is multiplied with: nobody says so but the compiler.
    keras.distribution.set_distribution(model_parallel({".*kernel": ("model", None)}))
    layer = jaxbridge.FlaxLayer(nn.Dense(16), seed=1, name="rows")
    layer.build((8, 16))
    free = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    chosen = compiled_shardings(layer, free)
    found["propagated"] = [list(chosen.inputs[0].spec), {path: list(s.spec) for path, s in chosen.variables.items()}]
    kept = compiled_shardings(layer, jax.device_put(x, NamedSharding(backend_mesh(device_mesh()), P("data"))))
    found["kept"] = list(kept.inputs[0].spec)
    keras.distribution.set_distribution(None)
    alone = jaxbridge.FlaxLayer(nn.Dense(16), seed=1, name="alone")
    alone.build((8, 16))
    found["alone"] = [str(type(s).__name__) for s in compiled_shardings(alone, free).inputs]
    return found


def docs() -> list[str]:
    """Runs the blocks of the page in order, and returns their first lines."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    return [block.splitlines()[0] for block in blocks]


def main(path: str) -> None:
    found = {}
    for section in (
        training,
        compiled,
        initialisation,
        annotations,
        saving,
        native,
        ragged,
        private,
        errors,
        own_rules,
        inferred,
        scopes.scopes,
        carried.carried,
        docs,
    ):
        keras.distribution.set_distribution(None)
        keras.utils.clear_session(free_memory=False)
        found[section.__name__] = section()
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    assert "device_count=8" in os.environ.get("XLA_FLAGS", "")
    main(sys.argv[1])
