"""What a module of any library may have: a table of rows, run for any pair of layer classes.

As `tests/contract.py`, whose helpers it uses; `benchmarks/layer_contract.py --contract module` writes the page in docs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
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
    raises("'always'", lambda: api.FlaxLayer(m.NNXNoise, seed=3)(X))
    seeded = api.FlaxLayer(m.NNXNoise, seed=3, rngs={"noise": "always"})
    assert (numpy(seeded(X)) != numpy(seeded(X))).any()


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


@row("equinox: saved and loaded")
def _(api):
    _saved(api.ModuleLayer(eqx.nn.Linear(3, 4, key=jax.random.key(0)), vmap=True))


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
