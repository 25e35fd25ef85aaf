"""Mistakes: each raises the promised class with the promised text, and writes nothing."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.errors import (
    JaxBridgeError,
    ShapeError,
    SignatureError,
    StructureError,
)
from tests import harness, models
from tests.cases import floats

ROOT = Path(__file__).resolve().parent.parent
STATE = {"mean": np.zeros(3, "float32"), "count": np.zeros((), "int32")}


def layer_with(new_state):
    """Returns a layer whose training call returns `new_state(state)`."""

    def call(state, inputs, training):
        return inputs + state["mean"], new_state(state) if training else state

    return JaxLayer(call, state=STATE, name="net")


def no_init(params, inputs):
    return inputs


def width_of_input(rng, inputs):
    return {"w": jnp.ones((inputs.shape[1], 2))}


CONSTRUCTION = {
    "unknown argument": (
        lambda: JaxLayer(lambda params, x: x, models.dense_init),
        SignatureError,
        r"Unsupported argument in `call_fn`: `x`, supported arguments are .*`inputs`.*call this one `inputs`",
    ),
    "another unknown argument": (
        lambda: JaxLayer(lambda params, inputs, x: x, models.dense_init),
        SignatureError,
        r"Unsupported argument in `call_fn`: `x`, supported arguments are .*`inputs`.*partial",
    ),
    "missing inputs": (
        lambda: JaxLayer(lambda params: params, models.dense_init),
        SignatureError,
        r"Missing required argument in `call_fn`: `inputs`",
    ),
    "unknown argument of init_fn": (
        lambda: JaxLayer(models.dense_call, lambda rng, inputs, width: 0),
        SignatureError,
        r"Unsupported argument in `init_fn`: `width`",
    ),
    "missing inputs of init_fn": (
        lambda: JaxLayer(models.dense_call, lambda rng: 0),
        SignatureError,
        r"Missing required argument in `init_fn`: `inputs`",
    ),
    "no function": (lambda: JaxLayer(3), SignatureError, r"`call_fn` must be a function, got 3 of type int"),
    "nothing says what the params are": (
        lambda: JaxLayer(no_init),
        SignatureError,
        r"`init_fn`, `params` and `state` cannot all be `None`",
    ),
    "seed of 33 bits": (
        lambda: JaxLayer(models.no_params_call, seed=2**32),
        ValueError,
        r"below 2\*\*32, got 4294967296.*`seed=0`",
    ),
    "seed below zero": (
        lambda: JaxLayer(models.no_params_call, seed=-1),
        ValueError,
        r"at least 0.*got -1.*`seed=4294967295`",
    ),
    "seed that is no integer": (
        lambda: JaxLayer(models.no_params_call, seed=1.5),
        TypeError,
        r"`seed` must be an integer or None, got 1.5 of type float",
    ),
    "hook that is no function": (
        lambda: JaxLayer(models.no_params_call, compute_output_shape_fn=(None, 3)),
        SignatureError,
        r"`compute_output_shape_fn` must be a function",
    ),
    "no module": (
        lambda: FlaxLayer(models.dense_call),
        StructureError,
        r"`module` must be an instance of flax.linen.Module",
    ),
    "a module's class without its arguments": (
        lambda: FlaxLayer(nn.Dense),
        SignatureError,
        r"the class Dense, .*: missing a required argument: 'features'",
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTION)
def test_construction(name):
    make, error, text = CONSTRUCTION[name]
    with pytest.raises(error, match=text):
        make()


BAD_STATES = {
    "missing leaf": (lambda s: {"mean": s["mean"]}, r"'count' is missing"),
    "new leaf": (lambda s: {**s, "more": s["mean"]}, r"'more' was not expected"),
    "other container": (lambda s: [s["mean"], s["count"]], r"a dict was expected and a list came"),
    "other shape": (
        lambda s: {**s, "mean": jnp.zeros(4)},
        r"'mean' was float32\[3\] and is now float32\[4\]",
    ),
    "broadcast shape": (lambda s: {**s, "mean": jnp.zeros(())}, r"'mean' was float32\[3\] and is now float32\[\]"),
    "other dtype": (
        lambda s: {"mean": s["mean"] + 1, "count": s["count"] + 0.5},
        r"'count' was int32\[\] and is now float32\[\]",
    ),
    "a leaf is None": (lambda s: {**s, "mean": None}, r"at 'mean' a leaf was expected and a None came"),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_changes_is_refused_before_anything_is_written(name):
    change, text = BAD_STATES[name]
    layer = layer_with(change)
    x = floats(2, 3)
    layer(x)
    before = harness.numbers(layer.variables)
    with pytest.raises(StructureError, match=text):
        layer(x, training=True)
    harness.assert_same(harness.numbers(layer.variables), before, 0, 0)


def call_with_size(x):
    if x.shape[1] != 5:
        raise TypeError("wants five columns")
    return x


CALLS = {
    "an output that is a string": (
        lambda: JaxLayer(lambda inputs: {"a": inputs, "b": "text"})(floats(2, 3)),
        StructureError,
        r"The output 'b' is a str",
    ),
    "an output that is a function": (
        lambda: JaxLayer(lambda inputs: len)(floats(2, 3)),
        StructureError,
        r"The output is a builtin_function_or_method",
    ),
    "no pair with state": (
        lambda: JaxLayer(lambda state, inputs: inputs, state=STATE)(floats(2, 3)),
        StructureError,
        r"`call_fn` takes `state`, so `call_fn` must return a tuple of two",
    ),
    "no pair of init_fn": (
        lambda: JaxLayer(models.counting_call, lambda rng, inputs: {"w": inputs})(floats(2, 3)),
        StructureError,
        r"`init_fn` must return a tuple of two.*returned dict",
    ),
    "a hook that lies": (
        lambda: JaxLayer(models.no_params_call, compute_output_shape_fn=lambda shape: (*shape, 1))(floats(2, 3)),
        StructureError,
        r"\(2, 3, 1\) for inputs of shape \(2, 3\), but the output has shape \(2, 3\)",
    ),
    "an input that is an object": (
        lambda: JaxLayer(models.no_params_call)(object()),
        ValueError,
        r"object",
    ),
    "polymorphic_shapes of another rank": (
        lambda: JaxLayer(models.no_params_call, polymorphic_shapes="(b, t, 3)")(keras.Input((3,))),
        ShapeError,
        r"\(b, t, 3\), of rank 3, for an input of shape \(None, 3\), of rank 2",
    ),
    "polymorphic_shapes of another size": (
        lambda: JaxLayer(models.no_params_call, polymorphic_shapes="(b, 4)")(keras.Input((3,))),
        ShapeError,
        r"axis 1 of the input has size 3, not 4",
    ),
    "polymorphic_shapes for another number of inputs": (
        lambda: JaxLayer(models.no_params_call, polymorphic_shapes=["(b, 4)", "(b, 4)"])(keras.Input((4,))),
        ShapeError,
        r"for each of the 1 inputs",
    ),
    "polymorphic_shapes that cannot be read": (
        lambda: JaxLayer(models.no_params_call, polymorphic_shapes="(b, 4*)")(keras.Input((4,))),
        ShapeError,
        r"cannot be (used|read)",
    ),
    "a constraint that cannot be read": (
        lambda: JaxLayer(models.no_params_call, polymorphic_shapes="(b, k)", polymorphic_constraints=("k is large",))(
            keras.Input((None,))
        ),
        ShapeError,
        r"constraint",
    ),
    "params that follow an unknown size": (
        lambda: called_at(
            JaxLayer(lambda params, inputs: inputs @ params["w"], width_of_input), keras.Input((None,)), floats(2, 7)
        ),
        ShapeError,
        r"(?s)shapes \(batch, size_1\).*unknown.*got \(size_1,\) and \(2,\)",
    ),
}


def called_at(layer, symbolic, value):
    layer(symbolic)
    return layer(value)


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    call, error, text = CALLS[name]
    with pytest.raises(error, match=text):
        call()


def four_k():
    layer = JaxLayer(
        models.fours_call,
        models.fours_init,
        polymorphic_shapes="(b, 4*k)",
        polymorphic_constraints=("k >= 2",),
    )
    x = keras.Input((None,))
    return keras.Model(x, layer(x)), layer


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 7), r"Axis 1 of input 0 has size 7.*\(b, 4\*k\)"),
        ((2, 4), r"constraint 'k >= 2' does not hold for k = 1"),
    ],
)
def test_a_size_that_breaks_a_declaration(shape, text):
    model, layer = four_k()
    model(floats(2, 8))
    with pytest.raises(ShapeError, match=text):
        layer(floats(*shape))


def test_a_mistake_in_the_function_is_raised_as_it_is():
    layer = JaxLayer(call_with_size_of_inputs)
    with pytest.raises(TypeError, match="wants five columns") as caught:
        layer(floats(2, 3))
    assert not isinstance(caught.value, JaxBridgeError)


def call_with_size_of_inputs(inputs):
    return call_with_size(inputs)


def test_a_function_that_needs_sizes_says_what_to_write():
    """On TensorFlow, where a graph does not know the sizes; JAX always does."""
    layer = JaxLayer(lambda inputs: inputs[:, :5] if inputs.shape[1] > 5 else inputs)
    if harness.BACKEND == "jax":
        assert layer.compute_output_shape((None, None)) == (None, 5)
    else:
        with pytest.raises(ShapeError, match=r"(?s)unknown.*polymorphic_constraints.*compute_output_shape_fn"):
            layer.compute_output_shape((None, None))


# What is not installed.


def run_script(script, **environment):
    """Runs a script in a fresh interpreter and returns what it prints or raises."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return result.stdout + result.stderr


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{package}":
            raise ModuleNotFoundError("No module named '{package}'", name="{package}")
sys.meta_path.insert(0, Block())
"""

MISSING = {
    "tensorflow for a conversion": ("tensorflow", "from jaxbridge import jax2tf\njax2tf.convert(lambda x: x)", {}),
    "tensorflow for an export": (
        "tensorflow",
        "import keras, jaxbridge\n"
        "model = keras.Sequential([keras.Input((3,)), jaxbridge.JaxLayer(lambda inputs: inputs)])\n"
        "import tempfile\n"
        "jaxbridge.export_saved_model(model, tempfile.mkdtemp())",
        {},
    ),
    "flax for a FlaxLayer": ("flax", "import jaxbridge\njaxbridge.FlaxLayer(object())", {}),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_package_is_named_with_its_install_command(name):
    package, script, environment = MISSING[name]
    output = run_script(BLOCK.format(package=package) + script, **environment)
    assert re.search(rf"MissingDependencyError: .*needs {package}.*pip install {package}", output), output


@pytest.mark.parametrize("package", ["tensorflow", "flax"])
def test_a_jax_layer_on_jax_needs_neither(package):
    script = """
    import numpy, jaxbridge
    print("shape", jaxbridge.JaxLayer(lambda inputs: inputs * 2)(numpy.ones((2, 3))).shape)
    """
    output = run_script(BLOCK.format(package=package) + textwrap.dedent(script))
    assert "shape (2, 3)" in output, output


def test_an_unsupported_backend_is_named():
    script = """
    import keras, jaxbridge
    assert keras.config.backend() == "numpy"
    jaxbridge.JaxLayer(lambda inputs: inputs)
    """
    output = run_script(script, KERAS_BACKEND="numpy")
    assert re.search(r"UnsupportedBackendError: .*jax, tensorflow.*'numpy'.*KERAS_BACKEND", output), output


def test_every_error_is_also_a_built_in_one():
    from jaxbridge import errors

    ours = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, JaxBridgeError)]
    assert len(ours) > 5
    assert all(
        issubclass(error, ValueError | ImportError | RuntimeError) for error in ours if error is not JaxBridgeError
    )


def test_no_error_leaves_a_tracer_in_the_state():
    layer = layer_with(lambda s: {"mean": s["mean"]})
    with pytest.raises(StructureError):
        layer(floats(2, 3), training=True)
    assert not any(isinstance(leaf.value, jax.core.Tracer) for leaf in layer.variables)


class TwoInputs(nn.Module):
    @nn.compact
    def __call__(self, a, b):
        return nn.Dense(2)(a) + nn.Dense(2)(b)


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda layer, a, b: layer([a, b]), r"must be given `b`, .*write `layer\(a, b\)` where you wrote"),
        (lambda layer, a, b: layer(a), r"must be given `b`, .*`layer\(x, b=\.\.\.\)`"),
    ],
)
def test_inputs_that_are_missing_are_named(symbolic, call, advice):
    inputs = (keras.Input((4,)), keras.Input((3,))) if symbolic else (floats(2, 4), floats(2, 3))
    with pytest.raises(SignatureError, match=advice):
        call(FlaxLayer(TwoInputs()), *inputs)
