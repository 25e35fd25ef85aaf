"""Models made in a `layout_map_scope`: the three kinds that its documentation describes, of Keras' layers and of ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import keras
import numpy as np
from jax.sharding import NamedSharding

import jaxbridge
from jaxbridge.distribution import describe_layouts, layout_map_scope, layout_of
from tests.distribution.checks import message

X, Y = np.random.RandomState(0).rand(8, 8).astype("float32"), np.ones((8, 8), "float32")

#: By the name of what a key means, with dots, with slashes and as expressions.
KEYS = {
    "native": {"d1.kernel": (None, "model"), "d1/bias": ("model",), "d2.kernel": ("model", None)},
    "bridge": {"d1.params.kernel": (None, "model"), "d1/params/bias": ("model",), "d2.*kernel": ("model", None)},
}
WANTED = {"d1 kernel": [None, "model"], "d1 bias": ["model"], "d2 kernel": ["model"], "d2 bias": []}


def dense(kind: str, units: int, **options: Any) -> Any:
    if kind == "native":
        return keras.layers.Dense(units, **options)
    return jaxbridge.FlaxLayer(nn.Dense(units), **options)


class Subclassed(keras.Model):
    """Its layers have no names that anybody chose, only attributes."""

    def __init__(self, kind: str):
        super().__init__()
        self.d1, self.d2 = dense(kind, 16), dense(kind, 8)

    def call(self, x):
        return self.d2(self.d1(x))


def functional(kind: str) -> Any:
    inputs = keras.Input((8,))
    return keras.Model(inputs, dense(kind, 8, name="d2")(dense(kind, 16, name="d1")(inputs)))


def sequential(kind: str) -> Any:
    return keras.Sequential([keras.Input((8,)), dense(kind, 16, name="d1"), dense(kind, 8, name="d2")])


def unbuilt_sequential(kind: str) -> Any:
    return keras.Sequential([dense(kind, 16, name="d1"), dense(kind, 8, name="d2")])


MODELS: dict[str, Callable[[str], Any]] = {
    "subclassed": Subclassed,
    "functional": functional,
    "sequential": sequential,
    "unbuilt_sequential": unbuilt_sequential,
}


#: Those that are trained, beside a control; the others would only repeat it.
FITTED = ("subclassed outside", "subclassed fit", "functional outside")


def mesh(shape: tuple[int, int] = (2, 4), count: int = 8) -> Any:
    return keras.distribution.DeviceMesh(shape, ("data", "model"), keras.distribution.list_devices()[:count])


def layout_map(layouts: dict[str, Any], device_mesh: Any = None) -> Any:
    result = keras.distribution.LayoutMap(device_mesh or mesh())
    for key, axes in layouts.items():
        result[key] = axes
    return result


def spec(variable: Any) -> Any:
    """What the value itself says, without trailing Nones, and only if the variable says the same."""
    sharding, layout = variable.value.sharding, layout_of(variable)
    if not isinstance(sharding, NamedSharding):
        return "one device" if layout is None else "layout without effect"
    axes = list(sharding.spec)
    while axes and axes[-1] is None:
        axes.pop()
    declared = [] if layout is None else list(layout.axes)
    return axes if declared[: len(axes)] == axes and not any(declared[len(axes) :]) else f"{axes} but {declared}"


def by_layer(model: Any) -> dict[str, Any]:
    d1, d2 = (model.d1, model.d2) if isinstance(model, Subclassed) else (model.get_layer("d1"), model.get_layer("d2"))
    return {f"{n} {v.name}": spec(v) for n, layer in (("d1", d1), ("d2", d2)) for v in layer.weights}


def fit(model: Any) -> list[float]:
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]


def kinds() -> dict[str, Any]:
    """Every kind of model, its variables made inside the scope, after it by a call, and after it by `fit`."""
    cases = [(kind, name, when) for kind in KEYS for name in MODELS for when in ("inside", "outside")]
    cases += [(kind, "subclassed", "fit") for kind in KEYS]
    return {" ".join(case): in_scope(*case) for case in cases}


def in_scope(kind: str, name: str, when: str) -> dict[str, Any]:
    start_again()
    with layout_map_scope(layout_map(KEYS[kind])):
        model = MODELS[name](kind)
        if when == "inside":
            model(X)
    if when == "outside":
        model(X)
    found: dict[str, Any] = {}
    if f"{name} {when}" in FITTED:
        found["losses"] = fit(model)
        found["slots"] = [spec(v) for v in model.optimizer.variables if v.name.endswith("kernel_velocity")]
        start_again()
        control = MODELS[name](kind)
        found["control"] = [fit(control), sorted(set(by_layer(control).values()))]
    return {"specs": by_layer(model), **found}


def start_again() -> None:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(8)

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))  # it has no name but that of the attribute
        self.late = keras.layers.Dense(8)
        self.late.build(shape)
        self.inner.build(shape)
        super().build(shape)

    def call(self, x):
        return self.late(self.inner(x)) * self.scale


class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]
        self.parts = {"head": keras.layers.Dense(8)}
        self.table = self.add_weight(shape=(8, 8), name="other_name")

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.parts["head"](x) + self.table[0]


def nested() -> dict[str, Any]:
    layouts = {
        "blocks.0.inner.kernel": (None, "model"),
        "blocks/1/inner/kernel": ("model", None),
        "blocks.0.scale": ("model",),
        "blocks.1.late.kernel": ("data", "model"),
        "parts.head.kernel": ("model", None),
        "table": (None, "model"),
    }
    lm = layout_map(layouts)
    with layout_map_scope(lm):
        model = Nested()
    model(X)
    report = describe_layouts(model, lm)
    return {
        "specs": {row.key: list(row.spec) for row in report.rows if row.source == "scope"},
        "others": sorted({row.source for row in report.rows if row.source != "scope"}),
        "unmatched": report.unmatched,
        "losses": fit(model)[-1] < 10,
    }


def make_in(lm: Any) -> Any:
    with layout_map_scope(lm):
        return sequential("bridge")


def loaded() -> dict[str, Any]:
    """A model that was saved without layouts and is loaded in a scope."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        saved = sequential("bridge")
        saved.save(path)
        with layout_map_scope(layout_map(KEYS["bridge"])):
            model = keras.models.load_model(path)
    return {"specs": by_layer(model), "equal": bool(np.allclose(model(X), saved(X), rtol=1e-5, atol=1e-6))}


def around() -> dict[str, Any]:
    """A scope within a distribution, a scope in a scope, and what is left behind."""
    init = keras.layers.Layer.__init__
    found: dict[str, Any] = {}
    other = layout_map({"sequential.*d2/params/kernel": (None, "data")})
    with keras.distribution.ModelParallel(layout_map=other, batch_dim_name="data").scope():
        model = make_in(layout_map({"d1.params.kernel": (None, "model")}))
        found["in_a_distribution"] = by_layer(model)
        found["sources"] = [row.source for row in describe_layouts(model).rows]
        half = layout_map({}, mesh((2, 2), 4))
        found["other_devices"] = message(lambda: make_in(half))
    keras.utils.clear_session(free_memory=False)
    with layout_map_scope(layout_map({"d1.params.kernel": ("model", None)})):
        outside = sequential("bridge")
        with layout_map_scope(layout_map({"d1.params.kernel": (None, "model")})):
            inside = sequential("bridge")
    found["nested_scopes"] = [by_layer(outside)["d1 kernel"], by_layer(inside)["d1 kernel"]]
    found["overlap"] = message(
        lambda: make_in(layout_map({"d1.*kernel": ("model", None), ".*/kernel": (None, "model")}))
    )
    found["indivisible"] = message(lambda: make_in(layout_map({"d1.params.kernel": ("data", "data")})))
    found["no_mesh"] = message(lambda: make_in(keras.distribution.LayoutMap(None)))
    found["loaded"] = loaded()
    with layout_map_scope(layout_map({})):
        pass
    later = sequential("native")
    found["afterwards"] = sorted(set(by_layer(later).values()))
    found["restored"] = keras.layers.Layer.__init__ is init and keras.distribution.distribution() is None
    found["devices"] = len(jax.devices())
    return found


def scopes() -> dict[str, Any]:
    return {"kinds": kinds(), "nested": nested(), "around": around()}
