"""Functions of layers in files: what is written is found again, or the save is refused with what to do."""

import functools
import json
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.errors import StructureError
from jaxbridge.layers.saving import _keras_private


def double(inputs):
    return inputs * 2


def scale(inputs, by):
    return inputs * by


@jax.jit
def jitted(inputs):
    return inputs / 2


@functools.partial(jax.jit, static_argnames="training")
def jitted_with_options(inputs, training):
    return inputs / 4


@jax.custom_vjp
def with_vjp(inputs):
    return inputs * 3


with_vjp.defvjp(lambda x: (x * 3, None), lambda _, g: (g * 30,))


@jax.custom_jvp
def with_jvp(inputs):
    return inputs * 5


with_jvp.defjvp(lambda primals, tangents: (primals[0] * 5, tangents[0] * 50))


def relu(inputs):
    return jnp.maximum(inputs, 0) + 100


class Maths:
    @staticmethod
    def square(inputs):
        return inputs**2

    @classmethod
    def cube(cls, inputs):
        return inputs**3


@keras.saving.register_keras_serializable(package="functions_in_files")
class Scaler:
    def __init__(self, by):
        self.by = by

    def call(self, inputs):
        return inputs * self.by

    def get_config(self):
        return {"by": self.by}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Unregistered:
    def call(self, inputs):
        return inputs


FUNCTIONS = {
    "plain": double,
    "jit": jitted,
    "jit with options": jitted_with_options,
    "jit of a function with a name": jax.jit(double),
    "custom_vjp": with_vjp,
    "custom_jvp": with_jvp,
    "named like one of Keras": relu,
    "partial": functools.partial(scale, by=2.5),
    "partial of a partial": functools.partial(functools.partial(scale, by=1.5), by=3.5),
    "jit of a partial": jax.jit(functools.partial(scale, by=4.5)),
    "partial of a jit": functools.partial(jitted),
    "static method": Maths.square,
    "class method": Maths.cube,
    "bound method": Scaler(7.0).call,
    "partial of a bound method": functools.partial(Scaler(8.0).call),
}


def written(layer):
    return json.loads(json.dumps(layer.get_config()))


@pytest.fixture
def safely(monkeypatch):
    monkeypatch.setattr(_keras_private, "safe_mode", lambda: True)


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_function_comes_back(what, safely):
    layer = JaxLayer(FUNCTIONS[what], compute_output_shape_fn=functools.partial(same_shape))
    again = JaxLayer.from_config(written(layer))
    x = np.array([[1.0, -2.0]], "float32")
    gradient = lambda fn: jax.grad(lambda x: fn(**given(fn, x)).sum())(x)
    assert (again.call_fn(**given(again.call_fn, x)) == layer.call_fn(**given(layer.call_fn, x))).all()
    assert (gradient(again.call_fn) == gradient(layer.call_fn)).all()
    assert again.compute_output_shape_fn((1, 2)) == (1, 2)


def same_shape(shape):
    return shape


def given(fn, x):
    return {"inputs": x, "training": False} if fn is jitted_with_options else {"inputs": x}


@pytest.mark.parametrize("fn", [double, jitted, with_vjp, with_jvp, relu, Maths.square])
def test_a_function_with_a_name_is_the_very_same(fn, safely):
    assert JaxLayer.from_config(written(JaxLayer(fn))).call_fn is fn


def local():
    def inner(inputs):
        return inputs

    return inner


REFUSED = {
    "bound method": (Unregistered().call, "get_config.*register"),
    "partial of a local function": (functools.partial(local()), "top level of a module"),
    "partial with an array": (functools.partial(scale, by=np.ones(2)), "`params`"),
    "custom_vjp of a function with a name": (jax.custom_vjp(double), "something else under that name"),
    "a decorated function": (functools.wraps(double)(lambda inputs: inputs), "something else under that name"),
    "an object": (type("Callable", (), {"__call__": lambda self, inputs: inputs})(), "cannot be written"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_found_again_is_refused(what):
    fn, message = REFUSED[what]
    with pytest.raises(StructureError, match=f"(?s)`call_fn`.*{message}"):
        JaxLayer(fn).get_config()


def test_a_local_function_is_given_as_custom_object(tmp_path):
    """As with keras.layers.JaxLayer."""
    inner = local()
    keras.Sequential([keras.Input((2,)), JaxLayer(inner)]).save(tmp_path / "m.keras")
    with pytest.raises(StructureError, match=r"custom_objects=\{'inner'"):
        keras.saving.load_model(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras", custom_objects={"inner": inner})
    assert loaded.layers[0].call_fn is inner


def test_a_lambda_needs_trust(tmp_path):
    with pytest.warns(UserWarning, match="lambda"):
        keras.Sequential([keras.Input((2,)), JaxLayer(lambda inputs: inputs * 3)]).save(tmp_path / "m.keras")
    with pytest.raises(StructureError, match="safe_mode=False"):
        keras.saving.load_model(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras", safe_mode=False)
    assert loaded.predict(np.ones((1, 2)), verbose=0).tolist() == [[3.0, 3.0]]


def test_a_copy_has_local_functions_too():
    layer = JaxLayer(local())
    assert JaxLayer.from_config(layer.get_config()).call_fn is layer.call_fn


def test_a_layer_whose_function_is_its_own_method_is_copied():
    class Doubled(JaxLayer):
        def __init__(self, **kwargs):
            super().__init__(self.run, **kwargs)

        def run(self, inputs):
            return inputs * 2

    again = Doubled.from_config(written(Doubled(name="d")))
    assert again.name == "d" and again.call_fn.__self__ is again


def test_functions_as_keras_writes_them(safely):
    form = keras.saving.serialize_keras_object(relu)
    config = {**written(JaxLayer(double)), "call_fn": form, "compute_output_shape_fn": None}
    with pytest.raises(StructureError, match=r"custom_objects=\{'relu': relu\}"):
        JaxLayer.from_config(config)  # Keras would take its own
    with keras.saving.custom_object_scope({"relu": relu}):
        assert JaxLayer.from_config(config).call_fn is relu


class Doubling(nn.Module):
    def double(self, x):
        return x * 2

    def __call__(self, x):
        return x


@pytest.mark.parametrize("method", ["double", Doubling.double, Doubling().double, functools.partial(Doubling.double)])
def test_a_method_of_a_module_comes_back(method, safely):
    again = FlaxLayer.from_config(written(FlaxLayer(Doubling(), method=method)))
    assert np.asarray(again(np.ones((1, 2)))).tolist() == [[2.0, 2.0]]


def test_a_new_process_that_imports_the_module_finds_them(tmp_path):
    layers = [JaxLayer(fn) for what, fn in FUNCTIONS.items() if what != "jit with options"]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.save(tmp_path / "m.keras")
    x = np.array([[0.1, -0.2]], "float32")
    script = (
        f"import {__name__}, keras, numpy as np\nmodel = keras.saving.load_model({str(tmp_path / 'm.keras')!r})\n"
        f"print('GIVES', np.asarray(model(np.array({x.tolist()}, 'float32'))).tolist())"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert "GIVES" in run.stdout, run.stderr[-2000:]
    gives = json.loads(run.stdout.split("GIVES")[1])
    np.testing.assert_allclose(gives, np.asarray(model(x)), rtol=1e-5)
