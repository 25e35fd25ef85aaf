"""Files: what was saved comes back, the seed's state too, so that a resumed training equals an unbroken one."""

import json
import sys
import types
import zipfile

import flax.linen as nn
import jax
import keras
import numpy as np
import pytest

from jaxbridge import FlaxLayer, JaxLayer
from jaxbridge.errors import StructureError
from tests import harness, models
from tests.cases import BY_NAME, CASES, DRAWING, SEED, WITH_STATE, floats

INTERESTING = [
    "params",
    "given_params",
    "rng_and_state",
    "nested",
    "haiku",
    "cnn",
    "transformer",
    "fours",
    "two_inputs",
]


def perturbed(case, seed=SEED):
    """Returns a functional model whose weights are not those of a fresh one, after a training call where one draws."""
    layer = case.layer(seed=seed)
    model = case.functional(layer)
    layer(*case.args(4, 8), training=True)
    for index, variable in enumerate(layer.weights):
        if "float" in variable.dtype:
            variable.assign(harness.numbers(variable) * 0.5 + 0.01 * (index + 1))
    return model, layer


def continued(case, layer):
    """Returns outputs and variables of what comes next: an inference and a training call."""
    args = case.args(4, 8)
    return harness.numbers([layer(*args), layer(*args, training=True), layer.state])


def layer_of(model):
    return next(layer for layer in model.layers if isinstance(layer, JaxLayer | FlaxLayer))


@pytest.mark.parametrize("name", INTERESTING)
def test_keras_file(name, tmp_path):
    case = BY_NAME[name]
    model, layer = perturbed(case)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    harness.assert_same(continued(case, layer_of(loaded)), continued(case, layer))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_file(case, tmp_path):
    model, layer = perturbed(case)
    model.save_weights(tmp_path / "w.weights.h5")
    other_layer = case.layer(seed=1)
    other = case.functional(other_layer)
    other.load_weights(tmp_path / "w.weights.h5")
    harness.assert_same(continued(case, other_layer), continued(case, layer))


@pytest.mark.parametrize("name", ["nested", "cnn", "rng_and_state"])
def test_sharded_weights(name, tmp_path):
    case = BY_NAME[name]
    model, layer = perturbed(case)
    # A shard holds at least one variable, whatever its limit.
    model.save_weights(tmp_path / "w.weights.json", max_shard_size=1e-6)
    assert len(list(tmp_path.glob("*.h5"))) >= 1
    other_layer = case.layer(seed=1)
    other = case.functional(other_layer)
    other.load_weights(tmp_path / "w.weights.json")
    harness.assert_same(continued(case, other_layer), continued(case, layer))


@pytest.mark.parametrize("name", ["rng_and_state", "cnn"])
def test_a_resumed_training_equals_an_unbroken_one(name, tmp_path):
    case = BY_NAME[name]
    x = case.model_input(8)

    def fresh():
        layer = case.layer()
        return case.functional(layer), layer

    unbroken, unbroken_layer = fresh()
    harness.fit(unbroken, x, epochs=4)
    first, _ = fresh()
    harness.fit(first, x, epochs=2)
    first.save(tmp_path / "half.keras")
    resumed = keras.saving.load_model(tmp_path / "half.keras")
    harness.fit(resumed, x, epochs=2)
    harness.assert_same(harness.numbers(layer_of(resumed).variables), harness.numbers(unbroken_layer.variables))


@pytest.mark.parametrize("case", DRAWING, ids=str)
def test_the_seed_state_is_saved(case, tmp_path):
    model, _ = perturbed(case)
    model.save_weights(tmp_path / "w.weights.h5")
    other_layer = case.layer(seed=1)
    other = case.functional(other_layer)
    other.load_weights(tmp_path / "w.weights.h5")
    assert harness.numbers(other_layer.seed_generator.state).tolist() == [SEED, 1]


@pytest.mark.parametrize("case", WITH_STATE, ids=str)
def test_get_weights_and_set_weights(case):
    _, layer = perturbed(case)
    other = harness.built(case, seed=1)
    other.set_weights(layer.get_weights())
    harness.assert_same(harness.values_of(other), harness.values_of(layer))


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 5},
        {"polymorphic_shapes": "(b, k)", "polymorphic_constraints": ("k >= 2",)},
        {"native_serialization_platforms": ("cpu", "cuda")},
        {"name": "other", "trainable": False},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_the_config_keeps_every_argument(options):
    layer = JaxLayer(models.dense_call, models.dense_init, **options)
    config = layer.get_config()
    again = JaxLayer.from_config(config)
    assert again.get_config() == config
    assert again.call_fn is models.dense_call and again.init_fn is models.dense_init


def test_the_config_keeps_a_module_and_its_method():
    layer = FlaxLayer(models.MLP(width=3), method="__call__", seed=5)
    again = FlaxLayer.from_config(layer.get_config())
    assert again.module == layer.module and again.seed == 5 and again.method == "__call__"


@pytest.mark.parametrize("name", ["state", "rng", "nested"])
def test_weights_of_keras_own_layer_are_read_by_index(name, tmp_path):
    """What keras.layers.JaxLayer.save_own_variables writes: params before state, each in the order of its leaves."""
    h5py = pytest.importorskip("h5py")
    case = BY_NAME[name]
    model, layer = perturbed(case)
    model.save_weights(tmp_path / "w.weights.h5")
    values = [harness.numbers(v) for v in layer.weights]
    with h5py.File(tmp_path / "w.weights.h5", "r+") as file:
        found = []
        file.visititems(lambda path, item: found.append(path) if path.endswith("vars") and len(item) else None)
        (group,) = [file[path] for path in found]
        for key in list(group):
            del group[key]
        for index, value in enumerate(values):
            group[str(index)] = value
    other_layer = case.layer(seed=1)
    other = case.functional(other_layer)
    other.load_weights(tmp_path / "w.weights.h5")
    harness.assert_same(harness.values_of(other_layer), harness.values_of(layer))


def test_a_file_of_other_variables_is_refused_and_nothing_written(tmp_path):
    model, _ = perturbed(BY_NAME["params"])
    model.save_weights(tmp_path / "w.weights.h5")
    layer = JaxLayer(
        lambda params, inputs: inputs @ params["w"] + params["c"],
        lambda rng, inputs: {"w": jax.numpy.ones((5, 4)), "c": jax.numpy.zeros(4)},
        name="net",
    )
    other = BY_NAME["params"].functional(layer)
    before = harness.numbers(layer.weights)
    # Keras wraps the layer's error in its own.
    with pytest.raises(ValueError, match=r"(?s)params/c.*params/b"):
        other.load_weights(tmp_path / "w.weights.h5")
    harness.assert_same(harness.numbers(layer.weights), before, 0, 0)


def test_a_file_of_other_shapes_is_refused(tmp_path):
    model, _ = perturbed(BY_NAME["params"])
    model.save_weights(tmp_path / "w.weights.h5")
    layer = JaxLayer(models.dense_call, models.dense_init, name="net")
    x = keras.Input((6,))
    other = keras.Model(x, layer(x))
    with pytest.raises(ValueError, match=r"params.w.*\(6, 4\).*\(5, 4\)"):
        other.load_weights(tmp_path / "w.weights.h5")


def test_saving_leaves_the_layer_as_it_was(tmp_path):
    model, layer = perturbed(BY_NAME["rng_and_state"])
    before = harness.numbers(layer.variables)
    model.save(tmp_path / "model.keras")
    harness.assert_same(harness.numbers(layer.variables), before, 0, 0)
    assert np.isfinite(harness.numbers(layer(floats(2, 5)))).all()


class Unregistered(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


def test_a_module_that_is_not_imported_is_given_as_custom_object(tmp_path, monkeypatch):
    """As that of a script which was `__main__` when it saved."""
    script = types.ModuleType("a_script_that_ran_once")
    monkeypatch.setattr(Unregistered, "__module__", script.__name__)
    monkeypatch.setattr(script, "Unregistered", Unregistered, raising=False)
    model = keras.Sequential([keras.Input((3,)), FlaxLayer(Unregistered(), name="net")])
    with monkeypatch.context() as while_it_runs:
        while_it_runs.setitem(sys.modules, script.__name__, script)
        model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"custom_objects=\{'Unregistered'"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Unregistered": Unregistered})
    harness.assert_same(harness.numbers(loaded.weights), harness.numbers(model.weights), 0, 0)


def test_a_file_with_a_removed_container_says_what_to_write(tmp_path):
    model = keras.Sequential([keras.Input((3,)), FlaxLayer(nn.Dense(2), name="net")], name="blocks")
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    config |= {"module": "jaxbridge.layers.sequential", "registered_name": "jaxbridge>Sequential"}
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "older.keras", "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    with pytest.raises(StructureError, match=r"'blocks'\), which was removed.*`keras\.Sequential`"):
        keras.models.load_model(tmp_path / "older.keras")
