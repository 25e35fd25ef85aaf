"""Wrong values of every argument of every public function: an error of ours that names the argument, and nothing is broken."""

import inspect

import flax.linen as nn
import jax
import keras
import numpy as np
import pytest

import jaxbridge
from jaxbridge import FlaxLayer, JaxLayer, ModuleLayer, jax2tf
from jaxbridge.errors import JaxBridgeError, SignatureError
from jaxbridge.testing import assert_backends_agree

X = np.ones((2, 3), "float32")


def double(inputs):
    return inputs * 2


def make_layer():
    return JaxLayer(double)


def model():
    return keras.Sequential([keras.Input((3,), name="x"), make_layer()])


class Doors:
    """A way to call each public function that works, up to the arguments that are given."""

    def __init__(self, folder):
        self.folder = folder

    def jax_layer(self, **given):
        return JaxLayer(**{"call_fn": double, **given})(X)

    def flax_layer(self, **given):
        return FlaxLayer(**{"module": nn.Dense(2), **given})(X)

    def module_layer(self, **given):
        return ModuleLayer(**{"module": nn.Dense(2), **given})(X)

    def freeze(self, **given):
        FlaxLayer(nn.Dense(2)).freeze(**given)

    def unfreeze(self, **given):
        FlaxLayer(nn.Dense(2)).unfreeze(**given)

    def regularize(self, **given):
        FlaxLayer(nn.Dense(2)).regularize(**{"pattern": "*", "regularizer": "l2", **given})

    def constrain(self, **given):
        FlaxLayer(nn.Dense(2)).constrain(**{"pattern": "*", "constraint": "non_neg", **given})

    def convert(self, **given):
        return jax2tf.convert(**{"fun_jax": double, **given})(X)

    def export_saved_model(self, **given):
        path = self.folder / "served"
        return jaxbridge.export_saved_model(**{"model": model(), "path": path, "verify": False, **given})

    def lower(self, **given):
        inputs = keras.KerasTensor((2, 3))
        return jaxbridge.lower(**{"layer_or_model": make_layer(), "inputs": inputs, **given})

    def summary(self, **given):
        inputs = keras.KerasTensor((2, 3))
        return jaxbridge.summary(**{"model": make_layer(), "inputs": inputs, **given})


DOORS = {
    "jax_layer": JaxLayer.__init__,
    "flax_layer": FlaxLayer.__init__,
    "module_layer": ModuleLayer.__init__,
    "freeze": FlaxLayer.freeze,
    "unfreeze": FlaxLayer.unfreeze,
    "regularize": FlaxLayer.regularize,
    "constrain": FlaxLayer.constrain,
    "convert": jax2tf.convert,
    "export_saved_model": jaxbridge.export_saved_model,
    "lower": jaxbridge.lower,
    "summary": jaxbridge.summary,
}

# Some, so that nothing has to be made to be refused.
FLAGS = ["false", None, 2, [True], np.ones(2)]
FLAGS_OR_NONE = [value for value in FLAGS if value is not None]
TEXTS = [3, b"x", ["x"], object(), np.ones(2)]
FUNCTIONS = [3, "tanh", [double], X, {}]
MAPPINGS = [3, "ab", ["ab"], {1: 2}, object()]
SEQUENCES = [3, "cpu", {"cpu": 1}, [1], object()]
NUMBERS = ["3", 1.5, 0, -1, True]

#: Wrong values by the argument's name.
WRONG = {
    "activity_regularizer": [3, "no", object()],
    "args": [3, "ab", {"features": 2}, object()],
    "autocast": FLAGS,
    "batch_size": [*NUMBERS, None],
    "call_fn": FUNCTIONS,
    "call_kwargs": MAPPINGS,
    "collections": [3, "cache", ["cache"], {"cache": 3}, object()],
    "compute_output_shape_fn": FUNCTIONS,
    "constraint": [3, "no", object()],
    "dtype": [3, "flaot32", object()],
    "fun_jax": FUNCTIONS,
    "gradient": FLAGS,
    "gradient_order": [*NUMBERS, None],
    "init_fn": FUNCTIONS,
    "kwargs": MAPPINGS,
    "layer_or_model": [3, "m", X],
    "method": [3, X, ["m"], {}],
    "model": [3, "m", X],
    "module": [3, "m", X],
    "name": TEXTS,
    "nan": [3, "no", None, True],
    "enable_xla": FLAGS_OR_NONE,
    "native_serialization": FLAGS_OR_NONE,
    "native_serialization_disabled_checks": [3, "platform", [1], object()],
    "native_serialization_platforms": [3, "cpu", ("gpu",), ("cpu", "cpu"), [1]],
    "path": [3, None, "", b"x", object()],
    "pattern": [*TEXTS, None],
    "platforms": [*SEQUENCES, ("gpu",), ("cpu", "cpu"), ()],
    "polymorphic_constraints": [*SEQUENCES, "k >= 2", None],
    "polymorphic_shapes": [3, [3], {"x": 3}, object(), X],
    "regularizer": [3, "no", object()],
    "rng_impl": ["fast", 3, ["rbg"], object()],
    "rngs": [3, "dropout", [1], {1: "always"}, object()],
    "seed": [1.5, "3", -1, 2**32, True],
    "sharding": [3, "no", object()],
    "source_info": FLAGS,
    "stablehlo_version": [3, b"1.0", ["1.13.0"]],
    "target": [3, b"1.0", ["1.13.0"]],
    "trainable": FLAGS,
    "training": FLAGS,
    "training_flag": [3, ["train"], {1: (True, False)}, {"train": True}],
    "verification_inputs": [3, "x", {"x": X}, X, [], iter(())],
    "verify": FLAGS,
    "vmap": FLAGS,
    "with_gradient": FLAGS,
}

#: Arguments that may be any pytree or value: what is wrong with them shows when they are used.
FREE = {"inputs", "params", "state", "variables"}

PAIRS = [
    (door, name)
    for door, function in DOORS.items()
    for name, parameter in inspect.signature(function).parameters.items()
    if name in WRONG and parameter.kind is not parameter.VAR_KEYWORD
]


@pytest.fixture
def doors(tmp_path):
    return Doors(tmp_path)


def test_every_argument_has_wrong_values():
    names = {name for function in DOORS.values() for name in inspect.signature(function).parameters}
    assert names - {"self", "kwargs", "options"} - FREE <= WRONG.keys()


@pytest.mark.parametrize(("door", "name"), PAIRS)
def test_a_wrong_value_is_named(doors, door, name, tmp_path):
    for value in WRONG[name]:
        given = {name: value} if name != "verification_inputs" else {name: value, "verify": True}
        with pytest.raises(JaxBridgeError, match=rf"`{name}`|`{name}=|the argument '{name}'"):
            getattr(doors, door)(**given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["activity_regularizer", "autocast", "dtype", "name", "trainable"])
@pytest.mark.parametrize("door", ["jax_layer", "flax_layer"])
def test_a_wrong_value_for_keras_is_named(doors, door, name):
    for value in WRONG[name]:
        with pytest.raises(SignatureError, match=rf"`{name}` must be"):
            getattr(doors, door)(**{name: value})


@pytest.mark.parametrize("door", DOORS)
def test_a_misspelt_argument_is_named_with_the_nearest(doors, door):
    name = [name for name in inspect.signature(DOORS[door]).parameters if name not in ("self", "kwargs", "options")][-1]
    with pytest.raises(SignatureError, match=rf"has no argument `{name}_`; did you mean `{name}`\?"):
        getattr(doors, door)(**{f"{name}_": None})


@pytest.mark.parametrize("door", DOORS)
def test_a_door_works(doors, door):
    """After all of these mistakes, in this process."""
    getattr(doors, door)()


TRAINING = ["false", "True", 1.5, [True], np.ones(2, bool), object(), {"a": 1}]


def test_a_mode_that_is_none_is_refused_at_a_call():
    layer = make_layer()
    for value in TRAINING:
        with pytest.raises(SignatureError, match="`training` must be"):
            layer(X, training=value)
    for value in (None, True, np.bool_(False), 1, keras.ops.convert_to_tensor(True), jax.numpy.asarray(True)):
        assert layer(X, training=value).shape == (2, 3)


def test_agreement_is_checked_before_a_process_is_started():
    for name, value in {
        "rtol": "1e-3",
        "timeout": 0,
        "seed": 1.5,
        "export": "no",
        "layer_factory": 3,
        "sizes": 3,
    }.items():
        with pytest.raises(JaxBridgeError, match=f"`{name}`"):
            assert_backends_agree(**{"layer_factory": make_layer, "inputs": lambda: X, name: value})
