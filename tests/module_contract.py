"""What a module of any library may have: a table of rows, run for any pair of layer classes.

As `tests/contract.py`, whose helpers it uses; `benchmarks/layer_contract.py --contract module` writes the page in docs.
"""

from __future__ import annotations

import functools
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import nnx

from tests.adapters import modules as m
from tests.contract import Row, X, Y, adder_to, finite, fit, same, sequential

ROWS: dict[str, Row] = {}
row = adder_to(ROWS)

numpy = keras.ops.convert_to_numpy


def modes(layer: Any, x: Any = X) -> tuple[Any, Any]:
    """Returns the outputs at inference and in training mode."""
    return numpy(layer(x, training=False)), numpy(layer(x, training=True))


def raises(text: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


def key_of(seed: int, stream: str) -> Any:
    """Returns the key of a stream in the first draw of a layer of this seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), zlib.crc32(stream.encode()))


def as_without_axis(make: Callable[[str | None], Any]) -> None:
    """Checks that a layer does the same with a name of an axis and without: fitted, at inference, and its state."""
    results = []
    for axis in (None, "batch"):
        keras.utils.set_random_seed(0)  # fit shuffles
        model = sequential(make(axis))
        fit(model, y=numpy(model(X)) + 1)
        results.append([model.predict(X, verbose=0), *model.get_weights()])
    for without, with_axis in zip(*results, strict=True):
        same(with_axis, without)


# NNX


@row("nnx: an instance, fitted")
def _(api):
    finite(fit(sequential(api.FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(0))))))


@row("nnx: a class with arguments, built when the layer is")
def _(api):
    layer = api.FlaxLayer(m.NNXBlock, args=(3, 4))
    assert not layer.built
    finite(fit(sequential(layer)))


@row("nnx: train and eval follow `training`")
def _(api):
    layer = api.FlaxLayer(m.NNXBlock(3, 4, rngs=nnx.Rngs(0)))
    module = m.NNXBlock(3, 4, rngs=nnx.Rngs(0))
    module.eval()
    same(layer(X), module(X))
    module.train()
    same(layer(X, training=True), module(X))


@row("nnx: its own keys, one mask after the other")
def _(api):
    layer = api.FlaxLayer(nnx.Dropout(0.5, rngs=nnx.Rngs(3)))
    module = nnx.Dropout(0.5, rngs=nnx.Rngs(3))
    for _ in range(4):
        same(layer(X, training=True), module(X))


@row("nnx: keys of another implementation (rbg)")
def _(api):
    make = lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(jax.random.key(3, impl="rbg")))
    same(api.FlaxLayer(make())(X, training=True), make()(X))


@row("nnx: a flag of the module's own")
def _(api):
    rest, training = modes(api.FlaxLayer(m.NNXFlag()))
    same(rest, X), same(training, 2 * X)


@row("nnx: LoRA: only its Variables are trained")
def _(api):
    layer = api.FlaxLayer(m.NNXLora, collections={nnx.Param: "state", nnx.LoRAParam: "params"})
    finite(fit(sequential(layer)))
    assert [v.path.split("/")[-1] for v in layer.trainable_variables] == ["lora_a", "lora_b"]


@row("nnx: what is sown does not break fit, and is returned on request")
def _(api):
    finite(fit(sequential(api.FlaxLayer(m.NNXSowing)), y=Y[:, :2]))
    outputs, seen = api.FlaxLayer(m.NNXSowing, collections={nnx.Intermediate: "return"})(X)
    same(seen["seen"], numpy(outputs))


@row("nnx: a changed attribute is named in the error")
def _(api):
    raises("calls", lambda: api.FlaxLayer(m.NNXStatic())(X))


@row("nnx: draws at inference")
def _(api):
    layer = api.FlaxLayer(m.NNXNoise(nnx.Rngs(noise=1)))
    assert (numpy(layer(X)) != numpy(layer(X))).any()
    raises("'always'", lambda: api.FlaxLayer(m.NNXNoise, seed=3, rngs={"noise": "training"})(X))
    seeded = api.FlaxLayer(m.NNXNoise, seed=3)
    assert (numpy(seeded(X)) != numpy(seeded(X))).any()


@row("nnx: streams that are an argument of the call")
def _(api):
    same(api.FlaxLayer(m.NNXKey, seed=3)(X), X + jax.random.normal(nnx.Rngs(key_of(3, "rngs")).noise(), X.shape))


@row("nnx: a flag inside a config")
def _(api):
    rest, training = modes(api.FlaxLayer(m.NNXConfigured(m.Config()), training_flag="config.deterministic"))
    same(rest, X), same(training, 2 * X)


@row("nnx: a type of Variable that changes in training mode only")
def _(api):
    layer = api.FlaxLayer(
        nnx.BatchNorm, args=(3,), collections={nnx.BatchStat: "training"}, training_flag={"momentum": (0.9, 0.9)}
    )
    layer(X)  # another flag follows the mode, so it always takes the statistics of the batch
    same(layer.state["mean"].value, np.zeros(3))


@row("nnx: a name of an axis, as without one")
def _(api):
    as_without_axis(lambda axis: api.FlaxLayer(nnx.BatchNorm(3, axis_name=axis, rngs=nnx.Rngs(0))))


@row("nnx: saved and loaded")
def _(api):
    _saved(api.FlaxLayer(m.NNXBlock, kwargs={"features": 3, "width": 4}))


# linen


@row("linen: without get_config, saved and loaded")
def _(api):
    _saved(api.FlaxLayer(m.LinenBlock(activation=jnp.tanh, inner=nn.Dense(3, param_dtype=jnp.float32))))


def _saved(layer: Any) -> None:
    model = sequential(layer)
    fit(model, y=numpy(model(X)))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "m.keras"))
        same(keras.models.load_model(Path(folder, "m.keras")).predict(X, verbose=0), model.predict(X, verbose=0))


@row("linen: what cannot be saved says why")
def _(api):
    layer = api.FlaxLayer(m.LinenBlock(activation=lambda x: x))
    raises("activation", layer.get_config)


@row("linen: flags by name: train, is_training, deterministic, use_running_average")
def _(api):
    for module in (m.LinenBlock(), m.LinenNoise(), nn.BatchNorm(), nn.Dropout(0.5)):
        rest, training = modes(api.FlaxLayer(module))
        assert (rest != training).any(), module


@row("linen: a flag of any name, with its two values")
def _(api):
    class Moded(nn.Module):
        @nn.compact
        def __call__(self, x, mode):
            return x * {"fit": 2, "serve": 1}[mode]

    rest, training = modes(api.FlaxLayer(Moded(), training_flag={"mode": ("fit", "serve")}))
    same(rest, X), same(training, 2 * X)


@row("linen: a flag that is a field of the module")
def _(api):
    class Field(nn.Module):
        train: bool = False

        @nn.compact
        def __call__(self, x):
            return x * (2 if self.train else 1)

    rest, training = modes(api.FlaxLayer(Field(), training_flag="train"))
    same(rest, X), same(training, 2 * X)


@row("linen: a flag inside a config")
def _(api):
    rest, training = modes(api.FlaxLayer(m.LinenConfigured(), training_flag="config.deterministic"))
    same(rest, X)
    assert (training == 0).any()


@row("linen: what it may change tells the mode (is_mutable_collection)")
def _(api):
    layer = api.FlaxLayer(m.LinenByMutability())
    model = sequential(layer)
    same(model.predict(X, verbose=0), X / np.sqrt(1 + 1e-5))
    same(layer.state["batch_stats"]["BatchNorm_0"]["mean"].value, np.zeros(3))
    layer(X, training=True)
    same(layer.state["batch_stats"]["BatchNorm_0"]["mean"].value, 0.01 * X.mean(0))


@row("linen: who always takes the statistics of the batch writes them in training mode only")
def _(api):
    layer = api.FlaxLayer(nn.BatchNorm(use_running_average=False))
    same(numpy(layer(X)).mean(0), np.zeros(3))
    same(layer.state["batch_stats"]["mean"].value, np.zeros(3))
    always = api.FlaxLayer(nn.BatchNorm(use_running_average=False), collections={"batch_stats": "state"})
    always(X)
    same(always.state["batch_stats"]["mean"].value, 0.01 * X.mean(0))


@row("linen: a collection that changes in training mode only, on request")
def _(api):
    layer = api.FlaxLayer(m.LinenCounter(), collections={"cache": "training"})
    counts = [
        int(numpy(layer.state["cache"]["count"].value)) for mode in (False, True) if layer(X, training=mode) is not None
    ]
    assert counts == [1, 2]  # one call initialises it


@row("linen: a name of an axis, as without one")
def _(api):
    as_without_axis(lambda axis: api.FlaxLayer(m.LinenNorm(axis), seed=0))


@row("linen: an NNX module inside follows the mode, and draws")
def _(api):
    layer = api.FlaxLayer(nnx.bridge.to_linen(m.NNXNorm))
    same(sequential(layer).predict(X, verbose=0), X / np.sqrt(1 + 1e-5))
    first, second = (numpy(layer(X, training=True)) for _ in range(2))
    assert (first == 0).any() and ((first == 0) != (second == 0)).any()
    assert (numpy(layer.state["batch_stats"]["norm"]["mean"].value) != 0).all()
    raises(
        "the linen module itself", lambda: api.FlaxLayer(nnx.bridge.ToNNX(nn.Dense(2), rngs=nnx.Rngs(0)).lazy_init(X))
    )


@row("linen: an argument that nothing fills is named, with the options")
def _(api):
    class Phased(nn.Module):
        @nn.compact
        def __call__(self, x, phase):
            return x * (2 if phase else 1)

    raises("training_flag='phase'", lambda: api.FlaxLayer(Phased())(X))
    rest, training = modes(api.FlaxLayer(Phased(), training_flag="phase"))
    same(rest, X), same(training, 2 * X)


@row("linen: variables that lack a collection")
def _(api):
    variables = m.LinenNorm().init(jax.random.key(0), X, False)
    raises("{'params': ...}", lambda: api.FlaxLayer(m.LinenNorm(), variables=variables["params"])(X))
    half = {"params": variables["params"]}
    for options in ({}, {"collections": {"batch_stats": "state"}}):
        layer = api.FlaxLayer(m.LinenNorm(), variables=half, **options)
        raises("'batch_stats': ...}", functools.partial(layer, X))
    api.FlaxLayer(m.LinenNorm(), variables=variables)(X)


@row("linen: any named streams")
def _(api):
    first = api.FlaxLayer(m.LinenNoise(), seed=3, rngs=("dropout", "noise"))
    second = api.FlaxLayer(m.LinenNoise(), seed=3)
    rest, training = modes(first)
    assert (rest != training).any()
    same(modes(second)[1], training)


@row("linen: draws at inference on request (MC dropout)")
def _(api):
    layer = api.FlaxLayer(nn.Dropout(0.5), call_kwargs={"deterministic": False}, rngs={"dropout": "always"})
    assert (numpy(layer(X)) != numpy(layer(X))).any()


@row("linen: a stream that the module asks for at inference is drawn from, without a word and with one")
def _(api):
    for options in ({}, {"rngs": ("sample",)}):
        layer = api.FlaxLayer(m.LinenSampler(), seed=3, **options)
        same(layer(X), m.LinenSampler().apply({}, X, rngs={"sample": key_of(3, "sample")}))
        assert (numpy(layer(X)) != numpy(layer(X))).all()
    raises("'always'", lambda: api.FlaxLayer(m.LinenSampler(), rngs={"sample": "training"})(X))


@row("linen: a key that is an argument of the call")
def _(api):
    for options in ({}, {"rngs": {"z_rng": "argument"}}):
        layer = api.FlaxLayer(m.LinenKey(), seed=3, **options)
        same(layer(X), X)  # reads none, so counts none
        same(layer(X, training=True), X + jax.random.normal(key_of(3, "z_rng"), X.shape))


@row("linen: streams that are not used cost nothing")
def _(api):
    layer = api.FlaxLayer(nn.Dense(4))
    layer(X, training=True)
    assert layer.seed_generator is None


@row("linen: keys of another implementation (rbg)")
def _(api):
    layer = api.FlaxLayer(nn.Dropout(0.5), seed=3, rng_impl="rbg")
    rest, training = modes(layer)
    assert ((training == 0) | np.isclose(training, 2 * rest)).all() and (training == 0).any()


@row("linen: intermediates dropped, and returned on request")
def _(api):
    options = {"losses": "drop"}
    finite(fit(sequential(api.FlaxLayer(m.LinenSowing(), collections=options)), y=Y[:, :2]))
    outputs, extra = api.FlaxLayer(m.LinenSowing(), collections={**options, "intermediates": "return"})(X)
    same(extra["intermediates"]["y"][0], numpy(outputs))


@row("linen: a collection of losses, added to the model's")
def _(api):
    layer = api.FlaxLayer(m.LinenSowing(), collections={"losses": "loss"})
    model = sequential(layer)
    same(model(X) ** 2, numpy(model(X)) ** 2)
    same(model.losses[0], (numpy(model(X)) ** 2).mean())
    model.compile("sgd", "mse")
    history = model.fit(X, np.zeros((32, 2)), batch_size=32, verbose=0).history
    assert history["loss"][0] > 0


@row("linen: a decode cache as state")
def _(api):
    layer = api.FlaxLayer(m.LinenCounter(), collections={"cache": "state"})
    layer(X), layer(X)
    assert int(numpy(layer.state["cache"]["count"].value)) == 3  # one call initialises it


@row("linen: a new collection is named in the error, with the option")
def _(api):
    raises("collections={'cache'", lambda: api.FlaxLayer(m.LinenCounter())(X))


@row("linen: a growing collection is named in the error, with the option")
def _(api):
    raises("collections={'losses'", lambda: api.FlaxLayer(m.LinenSowing())(X))


@row("linen: another method, and fixed arguments")
def _(api):
    layer = api.FlaxLayer(m.LinenMethods(), method="encode", call_kwargs={"times": 3})
    first = numpy(layer(X))
    kernel = numpy(layer.params["params"]["dense"]["kernel"].value)
    same(first, 3 * X @ kernel)
    assert layer.get_config()["method"] == "encode"


@row("linen: bool, uint8 and int64 inputs")
def _(api):
    class Typed(nn.Module):
        @nn.compact
        def __call__(self, flags, pixels, ids):
            assert flags.dtype == bool and pixels.dtype == jnp.uint8 and jnp.issubdtype(ids.dtype, jnp.integer)
            return nn.Embed(5, 3)(ids) * flags[:, None] + pixels[:, None] / 255

    layer = api.FlaxLayer(Typed())
    out = layer(np.array([True, False]), np.array([0, 255], "uint8"), np.array([1, 2], "int64"))
    same(out[1], np.ones(3))


# Haiku


@row("haiku: transform_with_state, fitted")
def _(api):
    finite(fit(sequential(api.ModuleLayer(hk.transform_with_state(m.haiku_block)))))


@row("haiku: transform")
def _(api):
    layer = api.ModuleLayer(hk.transform(lambda x: hk.nets.MLP([8, 4])(x)), name="net")
    finite(fit(sequential(layer)))
    assert len(layer.trainable_variables) == 4


@row("haiku: one of the functions of multi_transform")
def _(api):
    assert api.ModuleLayer(hk.multi_transform(m.autoencoder), method="encode")(X).shape == (32, 2)


@row("haiku: a name of an axis, as without one")
def _(api):
    make = lambda axis: hk.transform_with_state(functools.partial(m.haiku_norm, axis))
    as_without_axis(lambda axis: api.ModuleLayer(make(axis)))


@row("haiku: draws at inference")
def _(api):
    layer = api.ModuleLayer(hk.transform(m.haiku_sampler), seed=3)
    assert (numpy(layer(X)) != numpy(layer(X))).all()


@row("haiku: functions that take no key")
def _(api):
    assert api.ModuleLayer(hk.without_apply_rng(hk.transform(lambda x: hk.Linear(2)(x))))(X).shape == (32, 2)
    norm = hk.transform_with_state(functools.partial(m.haiku_norm, None))
    rest, training = modes(api.ModuleLayer(hk.without_apply_rng(norm)))
    assert (rest != training).any()


@row("haiku: a class, saved and loaded")
def _(api):
    _saved(api.ModuleLayer(m.HaikuBlock, args=(4,)))


# Equinox


@row("equinox: an instance over single examples, fitted")
def _(api):
    finite(fit(sequential(api.ModuleLayer(eqx.nn.MLP(3, 4, 8, 1, key=jax.random.key(0)), vmap=True))))


@row("equinox: a class with state and draws, fitted")
def _(api):
    layer = api.ModuleLayer(m.EquinoxBlock, args=(3, 4), vmap=True)
    finite(fit(sequential(layer)))
    assert len(layer.trainable_variables) == 4  # linear and norm; the statistics and the integers are state


@row("equinox: an instance with its eqx.nn.State")
def _(api):
    module, state = eqx.nn.make_with_state(m.EquinoxBlock)(3, 4, key=jax.random.key(0))
    rest, training = modes(api.ModuleLayer(module, variables=state, vmap=True))
    assert (training == 0).any() and not (rest == 0).any()


@row("equinox: the inference flag, keys of their own per example")
def _(api):
    layer = api.ModuleLayer(eqx.nn.Dropout, args=(0.5,), vmap=True)
    rest, training = modes(layer, np.ones((8, 16), "float32"))
    same(rest, np.ones((8, 16)))
    assert len({line.tobytes() for line in training}) == 8


@row("equinox: an axis of examples of any name")
def _(api):
    for axis in ("batch", "examples"):
        layer = api.ModuleLayer(m.EquinoxNorm, args=(axis,), vmap=True)
        same(layer(X, training=True), (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5))


@row("equinox: draws at inference")
def _(api):
    layer = api.ModuleLayer(m.EquinoxSampler, vmap=True, seed=3)
    assert (numpy(layer(X)) != numpy(layer(X))).all()


@row("equinox: a module of single examples says what to write")
def _(api):
    raises("vmap=True", lambda: api.ModuleLayer(eqx.nn.Linear(3, 4, key=jax.random.key(0)))(X))
    raises("vmap=True", lambda: api.ModuleLayer(m.EquinoxNorm, args=("batch",))(X))


@row("equinox: saved and loaded")
def _(api):
    _saved(api.ModuleLayer(eqx.nn.Linear(3, 4, key=jax.random.key(0)), vmap=True))


# What they return


@row("outputs that Keras does not know are dicts in a graph, and themselves in a direct call")
def _(api):
    kinds = (
        m.Output,
        m.NamedOutput,
        m.EquinoxOutput,
        lambda y: flax.core.freeze({"y": y}),
        lambda y: {"y": y, "z": None},
    )
    for kind in kinds:
        layer = api.FlaxLayer(m.LinenReturns(kind), seed=0)
        direct = layer(X)
        assert type(direct) is type(kind(y=X))
        inputs = keras.Input((3,))
        model = keras.Model(inputs, layer(inputs))
        got = model.predict(X, verbose=0)
        assert set(got) == {"y"}
        same(jax.tree.leaves(direct)[0], got["y"])
    model.compile("sgd", {"y": "mse"})
    finite(model.fit(X, {"y": Y[:, :2]}, verbose=0).history)


@row("an output that is None: left out at the end, an error before it")
def _(api):
    inputs = keras.Input((3,))
    (got,) = api.FlaxLayer(m.LinenReturns(lambda y: (y, None)))(inputs)
    assert got.shape == (None, 2)
    raises("Return a dict", lambda: api.FlaxLayer(m.LinenReturns(lambda y: (y, None, y)))(inputs))


@row("an input that Keras does not know says what to write")
def _(api):
    class Reads(nn.Module):
        @nn.compact
        def __call__(self, output):
            return nn.Dense(2)(output.y)

    for y in (X, keras.Input((3,))):
        raises("Output(**fields)", functools.partial(api.FlaxLayer(Reads()), m.Output(y)))
        layer = api.FlaxLayer(Reads(), method=lambda module, fields: module(m.Output(**fields)))
        assert tuple(layer({"y": y}).shape)[1:] == (2,)


# Functions, and what no adapter knows


def scaled_init(rng, inputs):
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 4))}


def scaled(params, inputs):
    return inputs @ params["w"]


@row("functions: a pair of functions")
def _(api):
    finite(fit(sequential(api.ModuleLayer((scaled_init, scaled)))))


@row("functions: typed keys on request")
def _(api):
    def noise(rng, inputs):
        if rng is None:
            return inputs
        assert jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key)
        return inputs + jax.random.normal(rng, inputs.shape)

    for impl in ("threefry2x32", "rbg"):
        rest, training = modes(api.JaxLayer(noise, seed=1, rng_impl=impl))
        assert (rest != training).any()


@row("functions: typed keys in the state")
def _(api):
    def split(state, inputs):
        key, now = jax.random.split(state)
        return jax.random.normal(now, inputs.shape), key

    layer = api.JaxLayer(split, state=jax.random.key(3))
    key = jax.random.key(3)
    for _ in range(2):
        key, now = jax.random.split(key)
        same(layer(X), np.asarray(jax.random.normal(now, X.shape)))


@row("an object that no adapter knows")
def _(api):
    raises("No adapter knows", lambda: api.ModuleLayer(object()))
