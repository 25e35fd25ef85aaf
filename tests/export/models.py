"""Models to export: a line of `CASES` per model, a property of exports per test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

import jaxbridge

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Case:
    """A model to export.

    Attributes:
        make: makes the model.
        calls: the inputs of each call, by name.
        inputs: name -> shape and dtype that the signature must have.
        outputs: the outputs' names, in the order that `keras.tree.flatten` has.
        options: for `export_saved_model`.
        pack: from the inputs by name to what the model is called with.
        has_gradients: whether the export has gradients on (the JAX backend, the TensorFlow backend).
    """

    make: Callable[[], keras.Model]
    calls: tuple[dict[str, np.ndarray], ...]
    inputs: dict[str, tuple[list[int | None], str]]
    outputs: tuple[str, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    pack: Callable[[dict[str, Any]], Any] = lambda given: next(iter(given.values()))
    has_gradients: tuple[bool, bool] = (True, True)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.BatchNorm(use_running_average=not training)(nn.Dense(8)(x))
        return nn.Dropout(0.5, deterministic=not training)(x)


class Tagger(keras.Model):
    """Subclassed, called with integers, and its `call` takes no `training`."""

    def __init__(self):
        super().__init__(name="tagger")
        self.table = layers.Embedding(10, 4, name="table")
        self.head = jaxbridge.FlaxLayer(nn.Dense(2), name="head")

    def call(self, tokens):
        return self.head(self.table(tokens))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 10, shape).astype("int32")


def native() -> keras.Model:
    return keras.Sequential(
        [keras.Input((4,), name="x"), layers.Dense(8, activation="tanh"), layers.Dropout(0.5), layers.Dense(2)],
        name="m",
    )


def bridge() -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), jaxbridge.FlaxLayer(Block(), name="net")], name="m")


def _init(rng, inputs):
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 3))}


def _tanh(params, inputs):
    return jnp.tanh(inputs @ params["w"])


def mixed() -> keras.Model:
    """Two inputs and two outputs by name, state and draws on both sides, unknown length."""
    seq, extra = keras.Input((None, 4), name="seq"), keras.Input((3,), name="extra")
    x = jaxbridge.FlaxLayer(Block(), seed=3, name="net")(seq)
    x = layers.Dropout(0.5, seed=4)(layers.BatchNormalization(name="norm")(x))
    pooled = layers.GlobalAveragePooling1D()(x) + layers.Dense(8, name="side")(extra)
    return keras.Model({"seq": seq, "extra": extra}, {"pooled": pooled, "x": x}, name="m")


def listed() -> keras.Model:
    """List inputs and outputs, one layer shared by both."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = jaxbridge.JaxLayer(_tanh, _init, name="shared")
    return keras.Model([a, b], [shared(a), layers.Dense(2, name="head")(shared(b))], name="m")


def nested() -> keras.Model:
    inner = native()
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1, name="outer")(inner(x)), name="m2")


def static() -> keras.Model:
    x = keras.Input((4,), batch_size=3, name="x")
    return keras.Model(x, jaxbridge.JaxLayer(_tanh, _init, name="net")(x), name="m")


def tagger() -> keras.Model:
    model = Tagger()
    model(ids(2, 3))
    return model


def subclassed_floats() -> keras.Model:
    class Floats(keras.Model):
        def __init__(self):
            super().__init__(name="floats")
            self.head = layers.Dense(2, name="head")

        def call(self, x, training=False):
            return self.head(x)

    model = Floats()
    model(floats(2, 3))
    return model


class Several(keras.Model):
    """Subclassed, called with several inputs in one structure."""

    def __init__(self):
        super().__init__(name="several")
        self.head = jaxbridge.FlaxLayer(nn.Dense(3), name="head")

    def call(self, inputs, training=False):
        x, *others = keras.tree.flatten(inputs)
        return {"y": sum(others, self.head(x))}


def several(*inputs: Any) -> keras.Model:
    model = Several()
    model(*inputs)
    return model


def awkward_names() -> keras.Model:
    """Inputs and outputs named as no parameter of a TensorFlow function can be."""
    inputs = [keras.Input((4,), name=name) for name in ("self", "x", "X")]
    total = layers.Add(name="total")(inputs)
    return keras.Model(inputs, {"self": total * 2, "y": total, "Y": layers.Dense(1, name="d")(total)}, name="m")


def compiled() -> keras.Model:
    model = bridge()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(floats(8, 4), floats(8, 8), verbose=0)
    return model


def half(dtype: str) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        x = keras.Input((4,), dtype=dtype, name="x")
        return keras.Model(x, {"y": layers.Dense(3, dtype=dtype, name="d")(x)}, name="m")

    return make


def policy() -> keras.Model:
    x = keras.Input((4,), name="x")
    x2 = jaxbridge.FlaxLayer(Block(), dtype="mixed_bfloat16", name="net")(x)
    return keras.Model(x, layers.Dense(2, dtype="mixed_bfloat16", name="d")(x2), name="m")


def whole_numbers() -> keras.Model:
    x = keras.Input((4,), dtype="int32", name="x")
    return keras.Model(x, {"total": keras.ops.sum(x, -1), "even": keras.ops.equal(x % 2, 0)}, name="m")


def picture() -> keras.Model:
    """Two unknown sizes under a convolution, whose gradient JAX cannot trace without a bound on them."""
    x = keras.Input((None, None, 1), name="x")
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3, name="conv")(x))
    return keras.Model(x, y, name="m")


def recurrent() -> keras.Model:
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = layers.LSTM(3, name="lstm")(layers.Embedding(10, 4, mask_zero=True, name="table")(x))
    return keras.Model(x, {"y": y}, name="m")


_X = ({"x": floats(2, 4)}, {"x": floats(5, 4)})
_IN = {"x": ([None, 4], "float32")}
_SEQ = ({"seq": floats(2, 5, 4), "extra": floats(2, 3)}, {"seq": floats(3, 7, 4), "extra": floats(3, 3)})
_SEQ_IN = {"seq": ([None, None, 4], "float32"), "extra": ([None, 3], "float32")}
_whole = lambda given: given

CASES = {
    "native": Case(native, _X, _IN, ("output_0",)),
    "bridge": Case(bridge, _X, _IN, ("output_0",)),
    "bridge_training": Case(bridge, (_X[0],) * 3, _IN, ("output_0",), {"training": True}),
    "mixed": Case(mixed, _SEQ, _SEQ_IN, ("pooled", "x"), pack=_whole),
    "mixed_training": Case(mixed, (_SEQ[0],) * 3, _SEQ_IN, ("pooled", "x"), {"training": True}, pack=_whole),
    "listed": Case(
        listed,
        ({"a": floats(2, 4), "b": floats(2, 4)},),
        {"a": ([None, 4], "float32"), "b": ([None, 4], "float32")},
        ("shared", "head"),
        pack=lambda given: [given["a"], given["b"]],
    ),
    "nested": Case(nested, _X, _IN, ("outer",)),
    "static": Case(static, ({"x": floats(3, 4)},), {"x": ([3, 4], "float32")}, ("net",)),
    "tagger": Case(
        tagger,
        ({"inputs": ids(2, 3)}, {"inputs": ids(4, 7)}),
        {"inputs": ([None, None], "int32")},
        ("output_0",),
        {"inputs": keras.KerasTensor((None, None), "int32")},
    ),
    "subclassed_floats": Case(
        subclassed_floats,
        ({"inputs": floats(2, 3)}, {"inputs": floats(4, 3)}),
        {"inputs": ([None, 3], "float32")},
        ("output_0",),
    ),
    "subclassed_dict": Case(
        lambda: several({"a": floats(2, 4), "rest": [floats(2, 3), floats(2, 3)]}),
        ({"a": floats(2, 4), "rest_0": floats(2, 3), "rest_1": floats(2, 3)},),
        {"a": ([None, 4], "float32"), "rest_0": ([None, 3], "float32"), "rest_1": ([None, 3], "float32")},
        ("y",),
        pack=lambda given: {"a": given["a"], "rest": [given["rest_0"], given["rest_1"]]},
    ),
    "awkward_names": Case(
        awkward_names,
        ({"self_1": floats(2, 4), "x": floats(2, 4), "X_1": floats(2, 4)},),
        {"self_1": ([None, 4], "float32"), "x": ([None, 4], "float32"), "X_1": ([None, 4], "float32")},
        ("Y", "self", "y"),
        pack=lambda given: list(given.values()),
    ),
    "compiled": Case(compiled, _X, _IN, ("output_0",)),
    "float16": Case(half("float16"), _X, {"x": ([None, 4], "float16")}, ("y",)),
    "bfloat16": Case(half("bfloat16"), _X, {"x": ([None, 4], "bfloat16")}, ("y",)),
    "policy": Case(policy, _X, _IN, ("d",)),
    "whole_numbers": Case(whole_numbers, ({"x": ids(3, 4)},), {"x": ([None, 4], "int32")}, ("even", "total")),
    "picture": Case(
        picture,
        ({"x": floats(2, 5, 6, 1)}, {"x": floats(1, 8, 4, 1)}),
        {"x": ([None, None, None, 1], "float32")},
        ("global_average_pooling2d",),
        has_gradients=(False, True),
    ),
    "picture_bounded": Case(
        picture,
        ({"x": floats(2, 5, 6, 1)},),
        {"x": ([None, None, None, 1], "float32")},
        ("global_average_pooling2d",),
        {"polymorphic_shapes": "(b, h, w, 1)", "polymorphic_constraints": ("h >= 3", "w >= 3")},
    ),
    "recurrent": Case(
        recurrent, ({"tokens": ids(2, 5)}, {"tokens": ids(3, 2)}), {"tokens": ([None, None], "int32")}, ("y",)
    ),
}
