"""What is measured in a process of one Keras backend: `python -m benchmarks.speed.worker WHAT ...` prints JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np

from benchmarks.speed import models
from benchmarks.speed.timing import alternating

BACKEND = keras.config.backend()
BRIDGES = ("jaxbridge", "keras")


def attempt(make: Callable[[], Callable[[], Any]]) -> Callable[[], Any] | str:
    """Returns what `make` made once it ran, or how it failed (keras' own layers do not run with the newest JAX)."""
    try:
        call = make()
        call()
        return call
    except Exception as error:
        return f"error: {type(error).__name__}"


def times(makers: dict[str, Callable[[], Callable[[], Any]]], rounds: int) -> dict[str, float | str]:
    tried = {name: attempt(make) for name, make in makers.items()}
    found = alternating({name: call for name, call in tried.items() if callable(call)}, rounds)
    return {name: found.get(name, call if isinstance(call, str) else "") for name, call in tried.items()}


class Identity(keras.layers.Layer):
    def call(self, inputs):
        return inputs


def floor_of_eager_call() -> Callable[[], Callable[[], Any]]:
    """The least that a layer around a compiled function can cost: a Keras layer that does nothing, and that function."""
    x = models.data("small MLP")[0]
    if BACKEND == "jax":
        module = models.MLP(models.SMALL)
        variables = module.init(jax.random.key(0), x)
        compiled, tensor, wait = jax.jit(module.apply), jnp.asarray(x), jax.block_until_ready
        function = lambda x: compiled(variables, x)
    else:
        import tensorflow as tf

        net = keras.Sequential(models.native_layers(models.SMALL))
        net.build((None, 32))
        function, tensor, wait = tf.function(lambda x: net(x)), tf.constant(x), lambda value: value
    identity = Identity()
    return lambda: lambda: wait(function(identity(tensor)))


def eager(training: bool, rounds: int) -> dict[str, Any]:
    x = keras.ops.convert_to_tensor(models.data("small MLP")[0])
    wait = jax.block_until_ready if BACKEND == "jax" else lambda value: value

    def maker(peer: str) -> Callable[[], Callable[[], Any]]:
        def make():
            layer = models.layers_of(peer, "small MLP")[0]
            layer(x)
            return lambda: wait(layer(x, training=training))

        return make

    return times(
        {**{peer: maker(peer) for peer in BRIDGES}, "identity layer + compiled": floor_of_eager_call()}, rounds
    )


def steps(name: str, jit_compile: str, rounds: int) -> dict[str, Any]:
    x, y = models.data(name)
    compiled = {"auto": "auto", "True": True, "False": False}[jit_compile]

    def maker(peer: str) -> Callable[[], Callable[[], Any]]:
        def make():
            model = models.sequential(models.layers_of(peer, name), x.shape[1:], compiled)
            tensors = [keras.ops.convert_to_tensor(value) for value in (x, y)]
            return lambda: model.train_on_batch(*tensors)

        return make

    peers = [*BRIDGES, *(["native"] if name in models.NATIVE else [])]
    return times({**{peer: maker(peer) for peer in peers}, "plain JAX": lambda: models.plain_step(name)}, rounds)


def head(rounds: int) -> dict[str, Any]:
    """A training step of a Dense layer behind a frozen 6 x Dense(1024)."""
    name = "6 x Dense(1024)"
    x, y = map(keras.ops.convert_to_tensor, models.data(name))

    def maker(peer: str) -> Callable[[], Callable[[], Any]]:
        def make():
            layers = models.layers_of(peer, name)
            for layer in layers:
                layer.trainable = False
            model = models.sequential([*layers, keras.layers.Dense(y.shape[1])], x.shape[1:])
            return lambda: model.train_on_batch(x, y)

        return make

    return times({peer: maker(peer) for peer in (*BRIDGES, "native")}, rounds)


class AllBlocks(nn.Module):
    blocks: tuple[nn.Module, ...]

    @nn.compact
    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def fused(name: str, rounds: int) -> dict[str, Any]:
    """A training step with a layer per block, and with one layer around all blocks."""
    from jaxbridge import FlaxLayer

    if name == "64 blocks":
        make, shape = (lambda: [models.Block() for _ in range(64)]), (64,)
    else:
        make, shape = (lambda: [models.Attention() for _ in range(6)]), (32, 64)
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(32, *shape)).astype("float32"))

    def maker(layers: Callable[[], list[Any]]) -> Callable[[], Callable[[], Any]]:
        def build():
            model = models.sequential(layers(), shape)
            return lambda: model.train_on_batch(x, x)

        return build

    each = lambda: [FlaxLayer(block) for block in make()]
    one = lambda: [FlaxLayer(AllBlocks(tuple(make())))]
    return times({"jaxbridge": maker(each), "one layer": maker(one)}, rounds)


def loop(what: str, rounds: int) -> dict[str, Any]:
    """`fit` or `predict` over 50 batches."""
    x, y = models.data("small MLP", 32 * 50)

    def maker(peer: str) -> Callable[[], Callable[[], Any]]:
        def make():
            model = models.sequential(models.layers_of(peer, "small MLP"), (32,))
            if what == "fit":
                return lambda: model.fit(x, y, batch_size=32, verbose=0)
            return lambda: model.predict(x, batch_size=32, verbose=0)

        return make

    return times({peer: maker(peer) for peer in (*BRIDGES, "native")}, rounds)


def first_step(peer: str, blocks: int) -> float:
    """Seconds from nothing to the end of the first training step of equal blocks."""
    x = np.ones((32, 64), "float32")
    warm = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])  # imports and thread pools
    warm.compile("sgd", "mse")
    warm.train_on_batch(x, x)
    start = time.perf_counter()
    if peer == "native":
        layers = [native_block() for _ in range(blocks)]
    else:
        layers = [models.flax_layer(peer)(models.Block()) for _ in range(blocks)]
    models.sequential(layers, (64,)).train_on_batch(x, x)
    return time.perf_counter() - start


def native_block() -> keras.Model:
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(128, activation="gelu")(keras.layers.LayerNormalization()(inputs))
    return keras.Model(inputs, keras.layers.Add()([inputs, keras.layers.Dense(64)(hidden)]))


def memory(peer: str) -> float:
    """Bytes of peak memory of training steps of 6 x Dense(1024), above what the process had after its imports."""
    name = "6 x Dense(1024)"
    x, y = models.data(name)
    models.flax_layer("jaxbridge")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.constant(0.0)
    jnp.zeros(()).block_until_ready()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmHWM")
    if peer == "plain JAX":
        run = models.plain_step(name)
    else:
        model = models.sequential(models.layers_of(peer, name), x.shape[1:])
        run = lambda: model.train_on_batch(x, y)
    for _ in range(5):
        run()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def export(peer: str, folder: str) -> dict[str, float]:
    """Writes a SavedModel of the ViT: seconds and bytes."""
    name = "ViT"
    _, shape, _ = models.MODULES[name]
    start = time.perf_counter()
    if peer in BRIDGES:
        model = models.sequential(models.layers_of(peer, name), shape)
        start = time.perf_counter()
        if peer == "keras":
            model.export(folder, verbose=False)
        else:
            from jaxbridge import export_saved_model

            export_saved_model(model, folder, verify=False)
    elif peer == "jax2tf":
        start = _export_with_jax2tf(name, shape, folder)
    else:
        start = _export_with_orbax(name, shape, folder)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())}


def _export_with_jax2tf(name: str, shape: tuple[int, ...], folder: str) -> float:
    import tensorflow as tf
    from jax.experimental import jax2tf

    module = models.MODULES[name][0]()
    params = module.init(jax.random.key(0), np.ones((1, *shape), "float32"))
    start = time.perf_counter()
    holder = tf.Module()
    holder.params = jax.tree.map(tf.Variable, params)
    converted = jax2tf.convert(module.apply, polymorphic_shapes=[None, "(b, ...)"])
    holder.serve = tf.function(
        lambda x: converted(holder.params, x), input_signature=[tf.TensorSpec((None, *shape))], autograph=False
    )
    tf.saved_model.save(holder, folder)
    return start


def _export_with_orbax(name: str, shape: tuple[int, ...], folder: str) -> float:
    import tensorflow as tf
    from orbax.export import ExportManager, JaxModule, ServingConfig

    module = models.MODULES[name][0]()
    params = module.init(jax.random.key(0), np.ones((1, *shape), "float32"))
    start = time.perf_counter()
    jax_module = JaxModule(params, module.apply, input_polymorphic_shape="(b, ...)")
    config = ServingConfig("serving_default", input_signature=[tf.TensorSpec((None, *shape), name="x")])
    ExportManager(jax_module, [config]).save(folder)
    return start


def served(folders: dict[str, str], batch: int, rounds: int) -> dict[str, Any]:
    """Latency of SavedModels in TensorFlow."""
    import tensorflow as tf

    x = tf.constant(models.data("ViT", batch)[0])

    def maker(folder: str) -> Callable[[], Callable[[], Any]]:
        def make():
            loaded = tf.saved_model.load(folder)
            signature = loaded.signatures["serving_default"]
            [name] = signature.structured_input_signature[1]
            return lambda: (loaded, next(iter(signature(**{name: x}).values())).numpy())

        return make

    return times({peer: maker(folder) for peer, folder in folders.items()}, rounds)


def main(what: str, *arguments: str) -> None:
    keras.utils.set_random_seed(0)
    if what == "eager":
        result: Any = eager(arguments[0] == "training", int(arguments[1]))
    elif what == "steps":
        result = steps(arguments[0], arguments[1], int(arguments[2]))
    elif what == "head":
        result = head(int(arguments[0]))
    elif what == "fused":
        result = fused(arguments[0], int(arguments[1]))
    elif what == "loop":
        result = loop(arguments[0], int(arguments[1]))
    elif what == "first_step":
        result = first_step(arguments[0], int(arguments[1]))
    elif what == "memory":
        result = memory(arguments[0])
    elif what == "export":
        with tempfile.TemporaryDirectory() as folder:
            result = export(arguments[0], arguments[1] if len(arguments) > 1 else folder)
    else:
        result = served(json.loads(arguments[0]), int(arguments[1]), int(arguments[2]))
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
