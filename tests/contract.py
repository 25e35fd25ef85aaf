"""Every way that Keras calls, builds, traces, saves and trains a layer: a table of rows, run for any pair of layer classes.

A row is a function of an `Api`; it raises if the layers do not do what its name says. `tests/layers/test_contract.py` runs
all rows with jaxbridge; `benchmarks/layer_contract.py` runs them with `keras.layers` beside it and writes the page in docs.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
ON_JAX = keras.config.backend() == "jax"


class Api(NamedTuple):
    """The layer classes under test; keras.layers has no ModuleLayer, and its FlaxLayer stands there."""

    JaxLayer: Any
    FlaxLayer: Any
    ModuleLayer: Any


@keras.saving.register_keras_serializable(package="contract")
class Block(nn.Module):
    """Params, state and draws."""

    @nn.compact
    def __call__(self, inputs, training=False):
        x = nn.Dense(4)(inputs)
        x = nn.BatchNorm(use_running_average=not training)(x)
        return nn.Dropout(0.5, deterministic=not training)(x)

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls()


@keras.saving.register_keras_serializable(package="contract")
def linear(params, inputs):
    return inputs @ params["w"]


@keras.saving.register_keras_serializable(package="contract")
def linear_init(rng, inputs):
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 4))}


Row = Callable[[Api], None]
ROWS: dict[str, Row] = {}


def adder_to(rows: dict[str, Row]) -> Callable[[str], Callable[[Row], Row]]:
    """Returns the decorator that adds a function to a table, under its name there."""

    def row(name: str) -> Callable[[Row], Row]:
        def add(function: Row) -> Row:
            assert name not in rows
            rows[name] = function
            return function

        return add

    return row


row = adder_to(ROWS)


def same(got: Any, want: Any, rtol: float = 2e-4) -> None:
    """float32, summed in another order."""
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), want, rtol=rtol, atol=rtol / 10)


def sequential(layer: Any, shape: tuple[int | None, ...] = (3,), dtype: str | None = None) -> keras.Model:
    return keras.Sequential([keras.Input(shape, dtype=dtype), layer])


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.net = layer

    def call(self, inputs, training=False):
        return self.net(inputs, training=training)


def fit(model: keras.Model, x: Any = X, y: Any = Y, **compile_options: Any) -> dict[str, Any]:
    model.compile("sgd", "mse", **compile_options)
    return model.fit(x, y, batch_size=8, verbose=0).history


def finite(history: dict[str, Any]) -> None:
    assert np.isfinite(history["loss"]).all(), history


# Calling


@row("nested inputs and outputs")
def _(api):
    layer = api.JaxLayer(lambda inputs: {"sum": inputs["a"] + inputs["b"][0], "parts": (inputs["a"],)})
    out = layer({"a": X, "b": [X]})
    same(out["sum"], 2 * X), same(out["parts"][0], X)


@row("several positional inputs")
def _(api):
    same(api.JaxLayer(lambda inputs: inputs[0] - 2 * inputs[1])(X, X), -X)


@row("inputs by keyword")
def _(api):
    same(api.JaxLayer(lambda inputs: inputs["x"] - 2 * inputs["y"])(**{"inputs": {"x": X, "y": X}}), -X)


@row("a module with several inputs")
def _(api):
    class Two(nn.Module):
        @nn.compact
        def __call__(self, first, second):
            return first - 2 * second

    same(api.FlaxLayer(Two())(X, second=X), -X)


@row("a mask for a function that asks for it")
def _(api):
    layer = api.JaxLayer(lambda inputs, mask: (inputs * mask[..., None]).sum(1) if mask is not None else inputs.sum(1))
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(5, 3, mask_zero=True, embeddings_initializer="ones")(ids)
    model = keras.Model(ids, layer(embedded))
    for tokens, count in (([[1, 2, 0]], 2), ([[1, 2, 3, 0]], 3)):
        same(model.predict(np.array(tokens), verbose=0), np.full((1, 3), count))


@row("a mask passed on with supports_masking")
def _(api):
    layer = api.JaxLayer(lambda inputs: inputs * 2)
    layer.supports_masking = True
    ids = np.array([[1, 2, 0]])
    out = keras.layers.GlobalAveragePooling1D()(layer(keras.layers.Embedding(5, 3, mask_zero=True)(ids)))
    assert out.shape == (1, 3)
    masked = layer(keras.layers.Embedding(5, 3, mask_zero=True)(ids))
    assert np.asarray(keras.ops.convert_to_numpy(masked._keras_mask)).tolist() == [[True, True, False]]


@row("training as bool, numpy bool, None and 0-d tensor")
def _(api):
    layer = api.FlaxLayer(Block(), seed=1)
    layer(X)
    rest = keras.ops.convert_to_numpy(layer(X, training=False))
    same(layer(X, training=None), rest), same(layer(X, training=np.bool_(False)), rest)
    same(layer(X, training=keras.ops.convert_to_tensor(False)), rest)
    for flag in (True, np.bool_(True), keras.ops.convert_to_tensor(True)):
        assert (keras.ops.convert_to_numpy(layer(X, training=flag)) == 0).any()


@row("training as a tensor that only the graph knows")
def _(api):
    layer = api.FlaxLayer(Block(), seed=1)
    layer(X)
    rest = keras.ops.convert_to_numpy(layer(X, training=False))
    if ON_JAX:
        function = jax.jit(
            lambda t, n, x, flag: layer.stateless_call(t, n, x, training=flag)[0],
        )
        variables = [v.value for v in layer.trainable_variables], [v.value for v in layer.non_trainable_variables]
        call = lambda flag: function(*variables, X, flag)
    else:
        import tensorflow as tf

        call = tf.function(lambda flag: layer(X, training=flag), input_signature=[tf.TensorSpec((), tf.bool)])
    same(call(keras.ops.convert_to_tensor(False)), rest)
    assert (keras.ops.convert_to_numpy(call(keras.ops.convert_to_tensor(True))) == 0).any()


@row("a training flag for a function without one")
def _(api):
    same(api.JaxLayer(lambda inputs: inputs + 1)(X, training=True), X + 1)


@row("integer inputs (token ids)")
def _(api):
    ids = np.array([[1, 2], [3, 4]], "int32")
    assert api.FlaxLayer(nn.Embed(5, 3))(ids).shape == (2, 2, 3)


@row("a batch of 0 rows, of 1 and of many")
def _(api):
    model = sequential(api.FlaxLayer(Block()))
    for count in (0, 1, 7, 3):
        assert tuple(model(X[:count]).shape) == (count, 4)


# Building


@row("fit on an unbuilt subclassed model")
def _(api):
    finite(fit(Subclassed(api.FlaxLayer(Block()))))


@row("predict on an unbuilt subclassed model")
def _(api):
    assert Subclassed(api.FlaxLayer(Block())).predict(X, verbose=0).shape == (32, 4)


@row("building inside the user's jit or tf.function")
def _(api):
    model = Subclassed(api.FlaxLayer(Block()))
    if ON_JAX:
        function = jax.jit(lambda x: model(x))
    else:
        import tensorflow as tf

        function = tf.function(lambda x: model(x), autograph=False)
    first = keras.ops.convert_to_numpy(function(X))
    same(model(X), first), same(function(X), first)
    assert not any(isinstance(v.value, jax.core.Tracer) for v in model.variables)


@row("build from a shape")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4))
    layer.build((None, 3))
    assert len(layer.weights) == 2 and layer(X).shape == (32, 4)


@row("build config knows dtypes and structure")
def _(api):
    def embed(params, inputs):
        return params["table"][inputs["ids"]]

    def init(rng, inputs):
        assert inputs["ids"].dtype == "int32"
        return {"table": jax.random.normal(rng, (5, 3))}

    layer = api.JaxLayer(embed, init)
    layer({"ids": np.array([[1, 2]], "int32")})
    copy = api.JaxLayer(embed, init)
    copy.build_from_config(layer.get_build_config())
    copy.set_weights(layer.get_weights())
    same(
        copy({"ids": np.array([[1, 2]], "int32")}),
        keras.ops.convert_to_numpy(layer({"ids": np.array([[1, 2]], "int32")})),
    )


# Shapes


@row("compute_output_shape without a call")
def _(api):
    assert tuple(api.FlaxLayer(nn.Dense(4)).compute_output_shape((None, 3))) == (None, 4)


@row("unknown sizes beyond the batch")
def _(api):
    model = sequential(api.FlaxLayer(nn.Conv(4, (3, 3))), (None, None, 3))
    for size in (6, 9):
        assert model.predict(np.ones((2, size, size + 1, 3)), verbose=0).shape == (2, size, size + 1, 4)


@row("two inputs that share an unknown size")
def _(api):
    layer = api.JaxLayer(lambda inputs: inputs[0] + inputs[1], **_declared(api, ("(b, t, 3)", "(b, t, 3)")))
    first, second = keras.Input((None, 3)), keras.Input((None, 3))
    model = keras.Model([first, second], layer((first, second)))
    for length in (2, 5):
        assert model.predict([np.ones((4, length, 3))] * 2, verbose=0).shape == (4, length, 3)


def _declared(api, shapes):
    """keras.layers has no argument for it; there the row stands or falls without."""
    return {} if api.JaxLayer is keras.layers.JaxLayer else {"polymorphic_shapes": shapes}


@row("eager calls at another batch size and length")
def _(api):
    layer = api.JaxLayer(lambda inputs: inputs * 2)
    for shape in ((2, 3), (5, 3), (2, 4)):
        same(layer(np.ones(shape, "float32")), np.full(shape, 2.0))


# State and randomness


@row("eight training calls draw eight masks")
def _(api):
    layer = api.FlaxLayer(nn.Dropout(0.5), method=_dropout, seed=3)
    masks = {keras.ops.convert_to_numpy(layer(np.ones((4, 16), "float32"), training=True)).tobytes() for _ in range(8)}
    assert len(masks) == 8


def _dropout(module, inputs, training=False):
    return module(inputs, deterministic=not training)


@row("sow does not break fit")
def _(api):
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            x = nn.Dense(4)(inputs)
            self.sow("intermediates", "x", x)
            return x

    finite(fit(sequential(api.FlaxLayer(Sowing()))))


@row("state keeps its structure, or an error before it is written")
def _(api):
    layer = api.JaxLayer(
        lambda params, state, inputs: (inputs, {"count": state["count"] + 1, "more": inputs}),
        params={"w": np.ones(3, "float32")},
        state={"count": np.zeros((), "int32")},
    )
    try:
        layer(X)
    except (ValueError, TypeError, KeyError):
        pass
    else:
        raise SystemError("no error")
    assert int(keras.ops.convert_to_numpy(layer.state["count"].value)) == 0


# Training


@row("fit, jit_compile auto, True and False")
def _(api):
    for flag in ("auto", True, False):
        finite(fit(sequential(api.FlaxLayer(Block())), jit_compile=flag))


@row("fit run eagerly")
def _(api):
    finite(fit(sequential(api.FlaxLayer(Block())), run_eagerly=True))


@row("fit with steps_per_execution")
def _(api):
    finite(fit(sequential(api.FlaxLayer(Block())), steps_per_execution=2))


@row("custom train_step")
def _(api):
    base = keras.Model

    class Custom(base):
        def __init__(self, layer):
            super().__init__()
            self.net = layer

        def call(self, inputs, training=False):
            return self.net(inputs, training=training)

        if ON_JAX:

            def train_step(self, state, data):
                trainable, rest, slots, metrics = state
                x, y = data

                def loss(trainable, rest):
                    out, rest = self.stateless_call(trainable, rest, x, training=True)
                    return jnp.mean((out - y) ** 2), rest

                (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(trainable, rest)
                trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
                return {"loss": value}, (trainable, rest, slots, metrics)
        else:

            def train_step(self, data):
                import tensorflow as tf

                x, y = data
                with tf.GradientTape() as tape:
                    value = tf.reduce_mean((self(x, training=True) - y) ** 2)
                grads = tape.gradient(value, self.trainable_variables)
                self.optimizer.apply(grads, self.trainable_variables)
                return {"loss": value}

    model = Custom(api.FlaxLayer(Block()))
    model(X)
    before = keras.ops.convert_to_numpy(model.trainable_variables[0])
    finite(fit(model))
    assert not np.array_equal(before, keras.ops.convert_to_numpy(model.trainable_variables[0]))


@row("several outputs with several losses")
def _(api):
    layer = api.JaxLayer(
        lambda params, inputs: {"a": inputs @ params["w"], "b": (inputs @ params["w"]).sum(-1)},
        params={"w": np.ones((3, 4), "float32")},
    )
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", {"a": "mse", "b": "mae"})
    finite(model.fit(X, {"a": Y, "b": Y[:, 0]}, verbose=0).history)


@row("trainable=False")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4), trainable=False)
    model = sequential(layer)
    before = model.get_weights()
    fit(model)
    assert not layer.trainable_weights and all(map(np.array_equal, before, model.get_weights()))


@row("freezing by path")
def _(api):
    layer = api.FlaxLayer(nn.Sequential([nn.Dense(4), nn.Dense(4)]))
    layer.freeze("layers_0/*")
    fit(sequential(layer))
    assert [v.path.split("/")[-2] for v in layer.trainable_variables] == ["layers_1", "layers_1"]


@row("regularizers and constraints by path")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4))
    layer.regularize("*/kernel", keras.regularizers.L2(0.1))
    layer.constrain("*/bias", keras.constraints.NonNeg())
    model = sequential(layer)
    fit(model)
    kernel = keras.ops.convert_to_numpy(layer.params["params"]["kernel"].value)
    same(model.losses[0], 0.1 * (kernel**2).sum())
    assert (keras.ops.convert_to_numpy(layer.params["params"]["bias"].value) >= 0).all()


@row("add_loss in a subclass")
def _(api):
    class WithLoss(api.FlaxLayer):
        def call(self, *args, **kwargs):
            outputs = super().call(*args, **kwargs)
            self.add_loss(keras.ops.mean(outputs**2))
            return outputs

    with_loss = sequential(WithLoss(nn.Dense(4)))
    without = sequential(api.FlaxLayer(nn.Dense(4)))
    without.set_weights(with_loss.get_weights())
    losses = [fit(model)["loss"][0] for model in (with_loss, without)]
    with_loss(X)
    assert len(with_loss.losses) == 1 and losses[0] > losses[1], losses


@row("activity regularizer")
def _(api):
    model = sequential(api.FlaxLayer(nn.Dense(4), activity_regularizer="l2"))
    model(X)
    assert len(model.losses) == 1 and float(model.losses[0]) > 0


@row("weights are named by their path")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4), name="net")
    layer(X)
    assert sorted(v.path for v in layer.weights) == ["net/params/bias", "net/params/kernel"]


@row("count_params, summary, and weights as in Keras (no seed among them)")
def _(api):
    layer = api.FlaxLayer(Block())
    model = sequential(layer)
    assert layer.count_params() == 3 * 4 + 4 + 4 + 4 + 8 and len(layer.weights) == 6
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert any("32" in line for line in lines)


@row("a layer shared and called twice")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4))
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Add()([layer(inputs), layer(inputs)]))
    same(model(X), 2 * keras.ops.convert_to_numpy(layer(X)))
    assert len(model.weights) == 2


@row("TimeDistributed")
def _(api):
    model = sequential(keras.layers.TimeDistributed(api.FlaxLayer(nn.Dense(4))), (5, 3))
    assert model.predict(np.ones((2, 5, 3)), verbose=0).shape == (2, 5, 4)


@row("keras.ops.cond, scan, map and vectorized_map around a layer")
def _(api):
    layer = api.FlaxLayer(nn.Dense(3))
    want = keras.ops.convert_to_numpy(layer(X))
    x = keras.ops.convert_to_tensor(X)
    same(keras.ops.cond(keras.ops.convert_to_tensor(True), lambda: layer(x), lambda: x), want)
    same(keras.ops.map(lambda r: layer(r[None])[0], x), want)
    same(keras.ops.vectorized_map(lambda r: layer(r[None])[0], x), want)
    same(keras.ops.scan(lambda c, r: (c + layer(r[None])[0], c), keras.ops.zeros((3,)), x)[0], want.sum(0))


@row("gradients by hand, of order 2")
def _(api):
    layer = api.JaxLayer(lambda inputs: jnp.sin(inputs) ** 3)
    want = jax.vmap(jax.vmap(jax.grad(jax.grad(lambda x: jnp.sin(x) ** 3))))(X)
    if ON_JAX:
        got = jax.vmap(jax.vmap(jax.grad(jax.grad(lambda x: layer(x[None, None])[0, 0]))))(X)
    else:
        import tensorflow as tf

        x = tf.constant(X)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x))
            first = inner.gradient(y, x)
        got = outer.gradient(first, x)
    same(got, np.asarray(want), 1e-3)


@row("quantize is refused with a reason")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4))
    layer(X)
    try:
        layer.quantize("int8")
    except NotImplementedError as error:
        assert "JAX function" in str(error), error
    else:
        raise AssertionError("quantized")


# Data


@row("tf.data, PyDataset and numpy data")
def _(api):
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]

    import tensorflow as tf

    for data in (Data(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)):
        model = sequential(api.FlaxLayer(Block()))
        model.compile("sgd", "mse")
        finite(model.fit(data, verbose=0).history)


if importlib.util.find_spec("torch"):

    @row("torch DataLoader")
    def _(api):
        import torch  # pyright: ignore[reportMissingImports]

        data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        model = sequential(api.FlaxLayer(Block()))
        model.compile("sgd", "mse")
        finite(model.fit(torch.utils.data.DataLoader(data, batch_size=8), verbose=0).history)


@row("tf.data.Dataset.map(layer), on the TensorFlow backend")
def _(api):
    if ON_JAX:
        return
    import tensorflow as tf

    layer = api.FlaxLayer(nn.Dense(4))
    want = keras.ops.convert_to_numpy(layer(X))
    mapped = list(tf.data.Dataset.from_tensor_slices(X).batch(16).map(layer))
    same(np.concatenate([batch.numpy() for batch in mapped]), want)


# Precision


def _precision(api, policy, variables, outputs):
    layer = api.FlaxLayer(Block(), dtype=policy)
    model = sequential(layer)
    finite(fit(model))
    dtypes = {v.path.split("/")[-3]: keras.backend.standardize_dtype(v.dtype) for v in layer.weights}
    assert keras.backend.standardize_dtype(model(X).dtype) == outputs
    assert dtypes == {"params": variables, "batch_stats": "float32"}, dtypes
    read = layer.state["batch_stats"]["BatchNorm_0"]["mean"]
    assert keras.backend.standardize_dtype(read.value.dtype) == "float32"


@row("mixed_bfloat16, statistics in float32")
def _(api):
    _precision(api, "mixed_bfloat16", "float32", "bfloat16")


@row("mixed_float16, statistics in float32")
def _(api):
    _precision(api, "mixed_float16", "float32", "float16")


@row("bfloat16, statistics in float32")
def _(api):
    _precision(api, "bfloat16", "bfloat16", "bfloat16")


@row("float64, with jax_enable_x64")
def _(api):
    with jax.enable_x64(True):
        layer = api.FlaxLayer(nn.Dense(4, dtype="float64", param_dtype="float64"), dtype="float64")
        out = layer(keras.ops.convert_to_tensor(X, dtype="float64"))
        kernel, bias = (keras.ops.convert_to_numpy(layer.params["params"][name].value) for name in ("kernel", "bias"))
        assert kernel.dtype == np.float64
        # Far below what float32 could give.
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(out), X.astype("float64") @ kernel + bias, rtol=1e-13, atol=1e-13
        )


@row("autocast=False")
def _(api):
    seen = []
    layer = api.JaxLayer(lambda inputs: seen.append(inputs.dtype) or inputs, dtype="mixed_bfloat16", autocast=False)
    layer(keras.ops.convert_to_tensor(X))
    assert set(map(str, seen)) == {"float32"}


# Saving


@row(".keras, .weights.h5 and sharded weights")
def _(api):
    model = sequential(api.FlaxLayer(Block(), name="net"))
    fit(model)
    want = model.predict(X, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "m.keras"))
        same(keras.models.load_model(Path(folder, "m.keras")).predict(X, verbose=0), want)
        for name, options in (("m.weights.h5", {}), ("m.weights.json", {"max_shard_size": 1e-7})):
            model.save_weights(Path(folder, name), **options)
            copy = sequential(api.FlaxLayer(Block(), name="net"))
            copy.load_weights(Path(folder, name))
            same(copy.predict(X, verbose=0), want)


@row("a resumed training draws on")
def _(api):
    model = sequential(api.FlaxLayer(Block(), seed=3, name="net"))
    fit(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(Path(folder, "m.weights.h5"))
        copy = sequential(api.FlaxLayer(Block(), seed=3, name="net"))
        copy.load_weights(Path(folder, "m.weights.h5"))
    same(copy(X, training=True), keras.ops.convert_to_numpy(model(X, training=True)))


@row("seed survives the config")
def _(api):
    assert api.JaxLayer(lambda rng, inputs: inputs, seed=5).get_config()["seed"] == 5


@row("params without init_fn: saved and loaded")
def _(api):
    model = sequential(api.JaxLayer(linear, params={"w": np.ones((3, 4), "float32")}, name="net"))
    fit(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "m.keras"))
        copy = keras.models.load_model(Path(folder, "m.keras"))
    same(copy.predict(X, verbose=0), model.predict(X, verbose=0))


@row("clone_model")
def _(api):
    model = sequential(api.JaxLayer(linear, linear_init))
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    same(copy.predict(X, verbose=0), model.predict(X, verbose=0))


@row("weights of the other library's file, read by index")
def _(api):
    other = keras.layers.FlaxLayer(nn.Dense(4), name="net")
    with tempfile.TemporaryDirectory() as folder:
        source = sequential(other)
        source.save_weights(Path(folder, "m.weights.h5"))
        copy = sequential(api.FlaxLayer(nn.Dense(4), name="net"))
        copy.load_weights(Path(folder, "m.weights.h5"))
        for ours, theirs in zip(copy.get_weights(), source.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


# Warnings


@row("a warning for large closed-over arrays")
def _(api):
    table = np.ones((700, 700), "float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api.JaxLayer(lambda inputs: inputs @ table)(np.ones((2, 700), "float32"))
    assert any("1.9 MiB" in str(w.message) for w in caught)
