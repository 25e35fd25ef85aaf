"""What layers with annotations do under a Keras distribution: a section of `jax_worker`, judged by `test_carried.py`."""

import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxbridge
from jaxbridge import jax2tf
from jaxbridge.errors import ShardingError
from tests import carry_cases
from tests.carry_cases import MESH

X = carry_cases.batch()
Y = np.ones((8, 8), "float32")
KERNELS = ("m/net/params/a/kernel", "m/net/params/b/kernel")


def parallel(keys: dict[str, tuple] | None = None, mesh: dict[str, int] = MESH) -> Any:
    names = tuple(mesh)
    device_mesh = keras.distribution.DeviceMesh(tuple(mesh.values()), names, keras.distribution.list_devices())
    layouts = keras.distribution.LayoutMap(device_mesh)
    for key, axes in (keys or {}).items():
        layouts[key] = axes
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name=names[0])


def network(sharding: Any = None, fn: Callable[..., Any] = carry_cases.call_constrained) -> keras.Model:
    layer = jaxbridge.JaxLayer(fn, carry_cases.init, sharding=sharding, name="net", seed=0)
    return keras.Sequential([keras.Input((4,), name="x"), layer], name="m")


def said(**more: Any) -> jaxbridge.Sharding:
    specs = {"a/kernel": P(None, "model"), "b/kernel": P("model", None), **more.pop("params", {})}
    return carry_cases.said(params=specs, **more)


def losses(model: keras.Model) -> list[float]:
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]


def shards(model: keras.Model) -> list[list[int]]:
    by_path = {v.path: v.value for v in model.weights}
    return [list(by_path[path].addressable_shards[0].data.shape) for path in KERNELS]


def compiled(model: keras.Model) -> dict[str, Any]:
    """A call with an input that is whole on every device: what is split is split by what is inside."""
    values = [v.value for v in model.trainable_variables]
    call = jax.jit(lambda values, x: model.stateless_call(values, [], x)[0])
    text = call.lower(values, X).compile().as_text()
    return {
        "output": list(call(values, X).addressable_shards[0].data.shape),
        "dots": sorted(set(re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text))),
        "all_reduce": "all-reduce(" in text,
    }


def refused(run: Callable[[], Any]) -> str:
    try:
        run()
    except ShardingError as error:
        return str(error)
    return "nothing was raised"


def overridden() -> dict[str, Any]:
    """A key of the LayoutMap wins over what the layer says, in the layout and in the constraint."""
    keras.distribution.set_distribution(parallel({KERNELS[0]: ("model", None)}))
    model = network(said())
    record = model.layers[-1].sharding_record
    return {"shards": shards(model), "record": list(dict(record.params)[KERNELS[0]])}


def rescued() -> str:
    """An axis of the module that the mesh does not have is no mistake where a key decides."""
    import flax.linen as nn

    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "tensor"))
    layer = lambda: jaxbridge.FlaxLayer(nn.Dense(8, kernel_init=init), name="net")
    keras.distribution.set_distribution(parallel({"net/params/kernel": (None, "model")}))
    first = layer()
    first(X)
    keras.distribution.set_distribution(parallel())
    return f"{first.weights[1].value.sharding.spec} {refused(lambda: layer()(X))}"


def odd_batch() -> list[str]:
    keras.distribution.set_distribution(parallel())
    layer = jaxbridge.JaxLayer(carry_cases.call, carry_cases.init, sharding=said(), name="odd", seed=0)
    layer(X)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        layer(X[:3])
    return [str(warning.message) for warning in found if "cannot be split" in str(warning.message)]


def exported() -> dict[str, Any]:
    """Exports while a distribution is in effect: native layers are on record as well."""
    keras.distribution.set_distribution(parallel({"m/head/kernel": (None, "model")}))
    model = network(said())
    model.add(keras.layers.Dense(16, name="head"))
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        report = jaxbridge.export_saved_model(model, ours)
        with jax2tf.patch():
            model.export(theirs, verbose=False)
        loaded = jaxbridge.load_jax(ours, {"data": 4, "model": 2})
        outputs = jax.jit(loaded)(loaded.params, X)
        return {
            "ours": {path: list(spec) for path, spec in jaxbridge.read_sharding(ours).params.items()},
            "theirs": {path: list(spec) for path, spec in jaxbridge.read_sharding(theirs).params.items()},
            "difference": float(report.verification.max_difference),
            "head": list(loaded.params["m/head/kernel"].addressable_shards[0].data.shape),
            "reloaded": bool(np.allclose(outputs, model(X), atol=1e-5)),
        }


def carried() -> dict[str, Any]:
    found: dict[str, Any] = {"alone": losses(network("ignore", carry_cases.call))}
    keras.distribution.set_distribution(parallel())
    model = network(said())
    found |= {"losses": losses(model), "shards": shards(model), "compiled": compiled(model)}
    control = network("ignore", carry_cases.call)
    found |= {"control_losses": losses(control), "control_shards": shards(control), "control": compiled(control)}
    # Another mesh than the one that the layer names, with the same names.
    keras.distribution.set_distribution(parallel(mesh={"data": 4, "model": 2}))
    found["another_mesh"] = shards(network(said()))
    found["names"] = refused(lambda: network(jaxbridge.Sharding({"rows": 2}, inputs=P("rows"))))
    keras.distribution.set_distribution(parallel(mesh={"data": 1, "model": 8}))
    found["sizes"] = refused(lambda: network(jaxbridge.Sharding(params={"a/kernel": P("model")})))
    return found | {"overridden": overridden(), "rescued": rescued(), "odd_batch": odd_batch(), "exported": exported()}
