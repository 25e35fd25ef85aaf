"""What jaxbridge and its alternatives do with the same code, run here and printed as a table.

    python benchmarks/compare_behaviour.py                  # both Keras backends
    python benchmarks/compare_behaviour.py --only export    # checks whose name holds a word

Each column runs in a process of its own. A cell is what a check returned, or the type and the beginning of its error.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path

BACKENDS = ("jax", "tensorflow")
LAYERS, CONVERT = ("keras.layers", "jaxbridge"), ("jax.experimental.jax2tf", "jaxbridge.jax2tf")
CHECKS = {}


def check(group: str, text: str):
    """Registers a check under the text of its row. Layer checks get a namespace with `JaxLayer` and `FlaxLayer`."""

    def register(function):
        CHECKS[text] = (group, function)
        return function

    return register


# Layers.


@check("layers", "`fit` of a CNN with BatchNorm and dropout")
def fit(ns):
    model = cnn(ns)
    model.compile("sgd", "mse")
    model.fit(ones(8, 8, 8, 1), ones(8, 2), batch_size=4, verbose=0)
    return "works"


@check("layers", "different random keys in 8 training calls")
def keys(ns):
    layer = ns.JaxLayer(lambda params, rng, inputs: (inputs * 0).sum() + jax_random().uniform(rng, ()), params={})
    return f"{len({float(layer(ones(2, 3), training=True)) for _ in range(8)})} of 8"


@check("layers", "integer inputs (`nn.Embed`), built by the first call")
def integers(ns):
    import flax.linen as nn

    ns.FlaxLayer(nn.Embed(10, 4))(ones(2, 3, dtype="int32"))
    return "works"


@check("layers", "two positional inputs")
def two_inputs(ns):
    import flax.linen as nn

    class Add(nn.Module):
        @nn.compact
        def __call__(self, a, b):
            return nn.Dense(3)(a) + b

    ns.FlaxLayer(Add())(ones(2, 4), ones(2, 3))
    return "works"


@check("layers", "paths of the variables of `nn.Dense(2)` in a layer named net")
def paths(ns):
    import flax.linen as nn

    layer = ns.FlaxLayer(nn.Dense(2), name="net")
    layer(ones(2, 3))
    return ", ".join(v.path for v in layer.weights)


@check("layers", "the Keras mask reaches a function that takes `mask`")
def masks(ns):
    import keras

    def call(params, inputs, mask):
        return inputs * mask[..., None]

    x = keras.layers.Masking()(ones(2, 3, 4))
    ns.JaxLayer(call, params={})(x)
    return "works"


@check("layers", "`compute_output_shape` of an unbuilt layer")
def output_shape(ns):
    import flax.linen as nn

    return str(ns.FlaxLayer(nn.Dense(2)).compute_output_shape((None, 3)))


@check("layers", "`jnp.linalg.inv`, unknown batch")
def inverse(ns):
    import jax.numpy as jnp
    import keras

    x = keras.Input((2, 2))
    model = keras.Model(x, ns.JaxLayer(lambda inputs: jnp.linalg.inv(inputs))(x))
    return works(model.predict(ones(3, 2, 2) + 2 * eye(2), verbose=0).shape == (3, 2, 2))


@check("layers", "`lax.top_k`, unknown batch")
def top_k(ns):
    import jax
    import keras

    x = keras.Input((5,))
    model = keras.Model(x, ns.JaxLayer(lambda inputs: jax.lax.top_k(inputs, 2)[0])(x))
    return works(model.predict(ones(3, 5), verbose=0).shape == (3, 2))


@check("layers", "a batch of 0 rows")
def no_rows(ns):
    import flax.linen as nn

    layer = ns.FlaxLayer(nn.Dense(2))
    layer(ones(2, 3))
    return works(tuple(layer(ones(0, 3)).shape) == (0, 2))


@check("layers", "saving and loading a JaxLayer that has params only")
def save_and_load(ns):
    import keras

    def call(params, inputs):
        return inputs @ params["w"]

    def init(rng, inputs):
        return {"w": jax_random().normal(rng, (inputs.shape[-1], 2))}

    for function in (call, init):
        keras.saving.register_keras_serializable()(function)
    model = keras.Sequential([keras.Input((3,)), ns.JaxLayer(call, init)])
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    return works(same(loaded(ones(2, 3)), model(ones(2, 3))))


@check("layers", "dtype in which a function sees float32 state under mixed_bfloat16")
def state_dtype(ns):
    seen = []

    def call(params, state, inputs, training):
        seen.append(str(state["mean"].dtype))
        return inputs, state

    ns.JaxLayer(call, state={"mean": ones(3)}, params={}, dtype="mixed_bfloat16")(ones(2, 3), training=True)
    return seen[-1]


@check("layers", "milliseconds of an eager call of a two-layer MLP (median of 20)")
def eager_time(ns):
    import flax.linen as nn

    layer = ns.FlaxLayer(nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(2)]))
    x = ones(8, 16)
    layer(x), layer(x)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        to_numpy(layer(x))
        times.append(time.perf_counter() - start)
    return f"{sorted(times)[10] * 1e3:.1f}"


# Exports.


@check("export", "the model's export, served without JAX at another batch size")
def export(ns):
    import jaxbridge

    model = cnn(ns)
    with tempfile.TemporaryDirectory() as folder:
        ns.export(model, f"{folder}/served")
        name = keras_input_name(f"{folder}/served")
        served = jaxbridge.serve_without_jax(f"{folder}/served", [{name: ones(5, 8, 8, 1)}])[0]
        stored = sum(f.stat().st_size for f in Path(folder, "served", "variables").iterdir())
    right = same(next(iter(served.values())), model(ones(5, 8, 8, 1)), 1e-4)
    weights = sum(to_numpy(v).nbytes for v in model.weights)
    return f"{works(right)}; files of {stored} bytes for weights of {weights}"


@check("export", "`model.export` under `jaxbridge.jax2tf.patch()`, served without JAX")
def export_patched(ns):
    import jaxbridge
    from jaxbridge import jax2tf

    model = cnn(ns)
    with tempfile.TemporaryDirectory() as folder:
        with jax2tf.patch():
            model.export(f"{folder}/served", verbose=False)
        name = keras_input_name(f"{folder}/served")
        served = jaxbridge.serve_without_jax(f"{folder}/served", [{name: ones(5, 8, 8, 1)}])[0]
    return works(same(next(iter(served.values())), model(ones(5, 8, 8, 1)), 1e-4))


# Conversion.


def converted(ns, function, shapes="(b, 4)", **options):
    import tensorflow as tf

    return tf.function(ns.convert(function, polymorphic_shapes=[shapes], **options), autograph=False)


def in_tensorflow(name):
    def run(ns):
        import jax
        import jax.numpy as jnp
        import tensorflow as tf

        function = {
            "matmul and softmax": lambda x: jax.nn.softmax(x @ jnp.ones((4, 4))),
            "exact gelu": lambda x: jax.nn.gelu(x, approximate=False),
            "top_k": lambda x: jax.lax.top_k(x, 2)[0],
            "sinh": jnp.sinh,
        }[name]
        spec = tf.TensorSpec([None, 4], tf.float32)
        concrete = converted(ns, function).get_concrete_function(spec)
        return works(same(concrete(tf.ones((3, 4))), function(jnp.ones((3, 4))), 1e-4))

    return run


for name in ("matmul and softmax", "exact gelu", "top_k", "sinh"):
    check("convert", f"{name}, unknown batch")(in_tensorflow(name))


@check("convert", "second-order gradient")
def second_order(ns):
    import jax.numpy as jnp
    import tensorflow as tf

    function, x = converted(ns, lambda x: jnp.sum(jnp.tanh(x) ** 3)), tf.constant([[0.1, 0.2, 0.3, 0.4]])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        gradient = inner.gradient(y, x)
    return works(outer.gradient(gradient, x) is not None)


@check("convert", "how often 3 eager calls of one shape trace the function")
def traces(ns):
    import tensorflow as tf

    count = []
    function = ns.convert(lambda x: (count.append(1), x * 2)[1])
    for _ in range(3):
        function(tf.ones((3, 4)))
    return len(count)


@check("convert", "a batch of 0 rows, unknown batch")
def convert_no_rows(ns):
    import tensorflow as tf

    concrete = converted(ns, lambda x: x * 2).get_concrete_function(tf.TensorSpec([None, 4], tf.float32))
    return works(concrete(tf.ones((0, 4))).shape == (0, 4))


@check("convert", "a `lax.while_loop` in a `tf.function` that is saved with gradients")
def while_loop(ns):
    import jax
    import tensorflow as tf

    module = tf.Module()
    module.f = tf.function(
        ns.convert(lambda x: jax.lax.while_loop(lambda y: y.sum() < 100, lambda y: y * 2, x)),
        input_signature=[tf.TensorSpec([3], tf.float32)],
        autograph=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, folder, options=options)
        return works(float(tf.saved_model.load(folder).f(tf.ones(3))[0]) == 64)


@check("convert", "orbax-export's JaxModule and ExportManager, unknown batch, served without JAX")
def orbax(ns):
    import jax.numpy as jnp
    import tensorflow as tf
    from orbax.export import ExportManager, JaxModule, ServingConfig

    import jaxbridge
    from jaxbridge import jax2tf

    function = lambda params, x: {"y": jnp.tanh(x @ params["w"])}
    context = jax2tf.patch() if ns is namespace("jaxbridge.jax2tf") else warnings.catch_warnings()
    with context, tempfile.TemporaryDirectory() as folder:
        module = JaxModule({"w": jnp.ones((4, 2))}, function, input_polymorphic_shape="(b, ...)")
        spec = tf.TensorSpec([None, 4], tf.float32, "x")
        manager = ExportManager(module, [ServingConfig("serving_default", input_signature=[spec])])
        manager.save(f"{folder}/served")
        served = jaxbridge.serve_without_jax(f"{folder}/served", [{"x": ones(5, 4)}])[0]["y"]
    return works(same(served, function({"w": jnp.ones((4, 2))}, ones(5, 4))["y"], 1e-5))


# Tools.


def cnn(ns):
    import flax.linen as nn
    import keras

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x, training):
            x = nn.BatchNorm(use_running_average=not training)(nn.Conv(4, (3, 3))(x))
            x = nn.Dropout(0.5, deterministic=not training)(nn.gelu(x, approximate=False).mean((1, 2)))
            return nn.Dense(2)(nn.Dense(4096)(x))

    x = keras.Input((8, 8, 1), name="inputs")
    return keras.Model(x, ns.FlaxLayer(CNN())(x))


def ones(*shape, dtype="float32"):
    import numpy as np

    return np.ones(shape, dtype)


def eye(size):
    import numpy as np

    return np.eye(size, dtype="float32")


def to_numpy(tensor):
    import keras

    return keras.ops.convert_to_numpy(tensor)


def jax_random():
    import jax

    return jax.random


def same(a, b, tolerance=1e-6):
    import numpy as np

    return bool(np.allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance))


def works(right: bool) -> str:
    return "works" if right else "WRONG VALUES"


def keras_input_name(path: str) -> str:
    import tensorflow as tf

    return next(iter(tf.saved_model.load(path).signatures["serving_default"].structured_input_signature[1]))


@functools.cache
def namespace(name: str):
    import types

    if name == "keras.layers":
        import keras

        export = lambda model, path: model.export(path, verbose=False)
        return types.SimpleNamespace(JaxLayer=keras.layers.JaxLayer, FlaxLayer=keras.layers.FlaxLayer, export=export)
    if name == "jaxbridge":
        import jaxbridge

        export = lambda model, path: jaxbridge.export_saved_model(model, path, verify=False)
        return types.SimpleNamespace(JaxLayer=jaxbridge.JaxLayer, FlaxLayer=jaxbridge.FlaxLayer, export=export)
    import importlib

    return importlib.import_module(name)


def run_column(name: str, group_names: list[str], word: str) -> None:
    """The child process: runs the checks of a column and prints its cells as JSON, one a line."""
    for text, (group, function) in CHECKS.items():
        if group not in group_names or word not in text:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cell = str(function(namespace(name)))
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            cell = f"{type(error).__name__}: {' '.join(lines)[:100]}"
        print("CELL " + json.dumps([text, cell]), flush=True)


def column(name: str, backend: str, group_names: list[str], word: str) -> dict[str, str]:
    command = [sys.executable, __file__, "--column", name, "--groups", *group_names, "--only", word]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    cells = dict(json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("CELL "))
    return cells if result.returncode == 0 else cells | {"(the process)": f"ended with {result.returncode}"}


def print_table(columns: dict[str, dict[str, str]]) -> None:
    rows = list(dict.fromkeys(text for cells in columns.values() for text in cells))
    if not rows:
        return
    print(f"\n| | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for text in rows:
        print(f"| {text} | " + " | ".join(cells.get(text, "").replace("|", "\\|") for cells in columns.values()) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only checks whose row holds this text")
    parser.add_argument("--groups", nargs="*", default=["layers", "export", "convert"], help="only these groups")
    parser.add_argument("--column", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.column:
        return run_column(options.column, options.groups, options.only)
    packages = ("jax", "flax", "keras", "tensorflow-cpu", "tensorflow", "orbax-export")
    found = {dist.name.replace("_", "-"): dist.version for dist in metadata.distributions()}
    print(f"Python {sys.version.split()[0]}, " + ", ".join(f"{p} {found[p]}" for p in packages if p in found))
    layer_groups = [group for group in options.groups if group != "convert"]
    if layer_groups:
        pairs = [(name, backend) for backend in BACKENDS for name in LAYERS]
        print_table(
            {f"{name}, {backend}": column(name, backend, layer_groups, options.only) for name, backend in pairs}
        )
    if "convert" in options.groups:
        print_table({name: column(name, "jax", ["convert"], options.only) for name in CONVERT})


if __name__ == "__main__":
    main()
