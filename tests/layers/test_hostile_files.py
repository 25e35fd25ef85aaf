"""Files that were edited to run something, or damaged: refused before anything is called, made or imported."""

import enum
import functools
import importlib
import json
import sys
import zipfile
from os import system

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

from jaxbridge import FlaxLayer, JaxLayer, adapters
from jaxbridge.errors import StructureError
from jaxbridge.layers import saving
from jaxbridge.layers.saving import _keras_private
from jaxbridge.layers.saving.allowed import NAMES

HERE = __name__
for library in ("flax.linen", "flax.nnx", "haiku", "equinox"):
    adapters.load(library)  # the libraries that jaxbridge knows are imported for a file's sake, and nothing else
CALLED = []


def loud(*args):
    CALLED.append(args)
    return args[-1]


class Loud:
    def __init__(self, *args):
        CALLED.append(args)

    @staticmethod
    def double(x):
        return 2 * x


class Shade(enum.Enum):
    LIGHT = 1


class Net(nn.Module):
    units: int = 2

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.units)(x)


def half(inputs):
    return inputs / 2


def name(module, text, registered=None):
    return {"jaxbridge": "name", "module": module, "name": text, "registered": registered}


def packed(kind, **parts):
    return {"jaxbridge": kind, **parts}


def partial(fn, *args, **words):
    items = packed("tuple", items=list(args)), packed("dict", items=[[k, v] for k, v in words.items()])
    return packed("partial", items=[fn, *items])


def module(library, cls, **fields):
    return packed("module", library=library, type=cls, fields=fields)


def keras_object(cls, module="keras.layers", registered=None, **config):
    return {"module": module, "class_name": cls, "config": config, "registered_name": registered}


def array(shape, dtype="float32", impl=None):
    return module("equinox", name("equinox.nn", "Linear"), weight=packed("array", shape=shape, dtype=dtype, impl=impl))


def tensor(shape, dtype="float32"):
    return {"class_name": "__keras_tensor__", "config": {"shape": shape, "dtype": dtype, "keras_history": None}}


def field(value):
    """Returns the edit that puts a value into a field of the module."""
    return {"module": module("flax.linen", name("flax.linen", "Sequential"), layers=[value])}


def nested(depth):
    return functools.reduce(lambda inner, _: packed("tuple", items=[inner]), range(depth), 1)


MARK = "the_mark"
TOUCH = f"touch {MARK}"
LAMBDA = {"class_name": "__lambda__", "config": {"value": {"code": "4wAAAAA=", "defaults": None, "closure": None}}}
DENSE = name("flax.linen", "Dense")

#: What is changed in the config of the FlaxLayer (of the JaxLayer where `call_fn` or `params` is named), and words of the
#: error. "build" is the build config.
HOSTILE = {
    # Names that are reached through something.
    "walk to os": (field(partial(name("keras.src.utils.file_utils", "os.system"), TOUCH)), r"os\.system"),
    "walk to subprocess": (
        field(partial(name("jaxbridge.export.serving", "subprocess.getoutput"), TOUCH)),
        "subprocess",
    ),
    "walk through the user's module": (field(partial(name(HERE, "os.system"), TOUCH)), r"custom_objects=\{'system'"),
    "a function the user imported": (field(partial(name(HERE, "system"), TOUCH)), "did not define it"),
    "globals": (field(name(HERE, "loud.__globals__")), "no class"),
    "dunder of a class": (field(name(HERE, "Loud.__subclasses__")), "did not define it"),
    "empty name": (field(name(HERE, "")), "does not define it"),
    # Python itself.
    "os": (field(partial(name("os", "system"), TOUCH)), r"custom_objects=\{'system': os\.system\}"),
    "posix": (field(partial(name("posix", "system"), TOUCH)), "Python itself"),
    "eval": (field(partial(name("builtins", "eval"), f"open('{MARK}', 'w')")), "Python itself"),
    "reduce": (field(partial(name("functools", "reduce"), name("os", "system"), [TOUCH, 1])), "functools"),
    "attrgetter": (field(partial(name("operator", "attrgetter"), "__class__")), "operator"),
    "partial in a partial": (field(partial(partial(name("os", "system")), TOUCH)), r"os\.system"),
    "an import": (field(partial(name("importlib", "import_module"), "planted")), "Python itself"),
    # Libraries.
    "numpy.savetxt": (field(partial(name("numpy", "savetxt"), MARK, [1])), r"numpy\.savetxt"),
    "numpy.load": (field(partial(name("numpy", "load"), MARK, allow_pickle=True)), r"numpy\.load"),
    "numpy.memmap": (field(partial(name("numpy", "memmap"), MARK, "uint8", "w+", 0, [9])), r"numpy\.memmap"),
    "jax.numpy.save": (field(partial(name("jax.numpy", "save"), MARK)), r"jax\.numpy\.save"),
    "jax.numpy.load": (field(partial(name("jax.numpy", "load"), MARK)), r"jax\.numpy\.load"),
    "a callback": (field(partial(name("jax", "pure_callback"), name("os", "system"))), "pure_callback"),
    "keras": (field(partial(name("keras.utils", "get_file"), MARK, "file:///etc/passwd")), "keras"),
    "jaxbridge": (field(partial(name("jaxbridge.export.serving", "serve_without_jax"), MARK)), "jaxbridge"),
    # Modules that are not imported.
    "planted": (field(name("planted", "run")), "not imported. Import it"),
    "planted module class": ({"module": module("flax.linen", name("planted", "Net"))}, "not imported"),
    "planted library": ({"module": module("planted", DENSE)}, "no adapter for planted"),
    # Classes and enumerations.
    "a constructor": (field(name(HERE, "Loud")), "constructor"),
    "partial of a constructor": (field(partial(name(HERE, "Loud"), 1)), "constructor"),
    "a class that is no module": ({"module": module("flax.linen", name(HERE, "Loud"))}, "constructor"),
    "a builtin class": ({"module": module("builtins", name("builtins", "list"))}, "Python itself"),
    "a function as a class": ({"module": module("flax.linen", name("jax.nn", "relu"))}, "which it is not"),
    "of another library": ({"module": module("equinox", DENSE)}, "which it is not"),
    "another library's class": ({"module": module("flax.linen", name("equinox.nn", "Linear"))}, "which it is not"),
    "foreign enumeration": (field(packed("enum", type=name("signal", "Signals"), name="SIGKILL")), "signal"),
    "no enumeration": (field(packed("enum", type=name("jax.nn", "relu"), name="real")), "none of that name"),
    "no member": (field(packed("enum", type=name("jax.lax", "Precision"), name="mro")), "none of that name"),
    "fields of another class": ({"module": module("flax.linen", DENSE, nothing=1)}, "cannot be made of the fields"),
    # Arguments of the layer.
    **{
        f"method {text}": ({"method": text}, "not the name of a method")
        for text in ("__class__", "__init_subclass__", "__reduce__", "init", "tabulate", "layers", "a.b", "", "name")
    },
    "method that runs": ({"method": partial(name("os", "system"), TOUCH)}, "`method`"),
    "call_kwargs": ({"call_kwargs": packed("dict", items=[["x", name("os", "system")]])}, "`call_kwargs`"),
    "call_kwargs is a list": ({"call_kwargs": ["x"]}, "`call_kwargs`"),
    "args": ({"args": packed("tuple", items=[name("os", "system")])}, "`args`"),
    "args is a number": ({"args": 3}, "`args`"),
    "kwargs without names": ({"kwargs": packed("dict", items=[[1, 2]])}, "not the name of an argument"),
    "rngs": ({"rngs": packed("dict", items=[["x", name("os", "system")]])}, "`rngs`"),
    "collections": ({"collections": packed("dict", items=[[name("os", "system"), "state"]])}, "`collections`"),
    "training_flag": ({"training_flag": packed("dict", items=[["a", name("os", "system")]])}, "`training_flag`"),
    "vmap": ({"vmap": name("os", "system")}, "`vmap`"),
    "hook": ({"compute_output_shape_fn": name("os", "system")}, "`compute_output_shape_fn`"),
    "hook as Keras writes it": (
        {"compute_output_shape_fn": {"module": "os", "class_name": "function", "config": "system"}},
        "`compute_output_shape_fn`",
    ),
    "call_fn": ({"call_fn": partial(name("os", "system"), TOUCH)}, "`call_fn`"),
    "call_fn as Keras writes it": (
        {"call_fn": {"module": "os", "class_name": "function", "config": "system"}},
        "`call_fn`",
    ),
    "a lambda": ({"call_fn": LAMBDA}, "safe_mode=False"),
    "init_fn": ({"call_fn": name(HERE, "half"), "init_fn": name("numpy", "load")}, "`init_fn`"),
    # What Keras would make.
    "Keras' Lambda": (field(packed("keras", config=keras_object("Lambda", function=LAMBDA))), "Lambda"),
    "Keras' code": (field(packed("keras", config=LAMBDA)), "safe_mode=False"),
    "Keras' layer": (field(packed("keras", config=keras_object("TFSMLayer", filepath="/"))), "TFSMLayer"),
    "inside of Keras' own": (
        field(packed("keras", config=keras_object("L2", "keras.regularizers", l2=keras_object("Lambda")))),
        "Lambda",
    ),
    "Keras' function": (
        field(packed("keras", config={"a": {"module": "keras.utils", "class_name": "function", "config": "get_file"}})),
        "get_file",
    ),
    "Keras' form of a module": ({"module": keras_object("Net", "planted")}, r"custom_objects=\{'Net': planted\.Net\}"),
    "dtype policy": ({"dtype": keras_object("Lambda", function=LAMBDA)}, "`dtype`"),
    "regularizer": ({"activity_regularizer": LAMBDA}, "`activity_regularizer`"),
    "path rules": ({"path_rules": [["regularizer", "*", LAMBDA]]}, "`path_rules`"),
    "a huge tensor of Keras": (
        field(packed("keras", config={"class_name": "__numpy__", "config": {"value": 0, "dtype": "V4000000000000"}})),
        "dtype",
    ),
    # Registered names.
    "registered": (field(name("os", "system", "os>system")), r"os\.system"),
    "registered is no text": (field(name("jax.nn", "relu", 3)), "damaged"),
    # Sizes.
    "4 TB": ({"module": array([10**12])}, "memory"),
    "4 TB in parts": (field([array([10**10]) for _ in range(100)]), "memory"),
    "4 TB of keys": ({"module": array([10**12, 2], "uint32", "threefry2x32")}, "memory"),
    "no keys": ({"module": array([3], "uint32", "threefry2x32")}, "no keys"),
    "unknown keys": ({"module": array([2], "uint32", "other")}, "no keys"),
    "negative": ({"module": array([-1])}, "not the shape"),
    "bool": ({"module": array([True])}, "not the shape"),
    "fraction": ({"module": array([1.5])}, "not the shape"),
    "beyond 64 bits": ({"module": array([2**70, 0])}, "not the shape"),
    "shape is text": ({"module": array("12")}, "damaged"),
    "params of 4 TB": ({"call_fn": name(HERE, "half"), "params": {"w": tensor([10**12])}}, "memory"),
    "params of unknown size": ({"call_fn": name(HERE, "half"), "params": tensor([None])}, "not the shape"),
    "params that are code": ({"call_fn": name(HERE, "half"), "params": [LAMBDA]}, "where an array must be"),
    "inputs of 4 TB": ({"build": {"inputs": {"args": [tensor([10**12])], "kwargs": {}}}}, "memory"),
    "inputs that are code": ({"build": {"inputs": {"args": [LAMBDA], "kwargs": {}}}}, "where an array must be"),
    "inputs of another form": ({"build": {"inputs": [tensor([1])]}}, "build config"),
    "a shape of 4 TB": ({"build": {"input_shape": [10**12]}}, "memory"),
    "a shape that is none": ({"build": {"input_shape": [1, "x"]}}, "not the shape"),
    # Damage.
    "deep": (field(nested(200)), "deep"),
    "dtype V": (field(packed("dtype", name="V4000000000000")), "dtype"),
    "dtype object": (field(packed("dtype", name="object")), "dtype"),
    "dtype list": (field(packed("dtype", name=["float32"])), "damaged"),
    "unknown kind": (field(packed("code", text="1")), "kind 'code'"),
    "kind is a list": (field({"jaxbridge": ["name"]}), "damaged"),
    "no module": (field({"jaxbridge": "name", "name": "relu"}), "'module' is missing"),
    "module is a number": (field(name(3, "relu")), "damaged"),
    "fields is a list": ({"module": {**module("flax.linen", DENSE), "fields": [1]}}, "damaged"),
    "type is a text": ({"module": module("flax.linen", "Dense")}, "damaged"),
    "type is a module": ({"module": module("flax.linen", module("flax.linen", DENSE))}, "damaged"),
    "partial of a number": (field(packed("partial", items=[3, nested(1), packed("dict", items=[])])), "damaged"),
    "partial of two": (field(packed("partial", items=[name("jax.nn", "relu")])), "damaged"),
    "a pair of three": (field(packed("dict", items=[[1, 2, 3]])), "damaged"),
    "a list as a key": (field(packed("dict", items=[[[1], 2]])), "key of a dict"),
    "items is a text": (field(packed("tuple", items="ab")), "damaged"),
    "module is a number itself": ({"module": 3}, "must be an instance of"),
    "a method of a number": (field(packed("method", of=3, name="real")), "damaged"),
    "a method of Keras": (
        field(packed("method", of=packed("keras", config=keras_object("L2", "keras.regularizers")), name="get_config")),
        "method",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two good files: of a FlaxLayer and of a JaxLayer."""
    for library in adapters.libraries():
        adapters.load(library)  # which imports the library: what a test counts is what a file imports
    folder = tmp_path_factory.mktemp("good")
    layers = {"flax": FlaxLayer(nn.Sequential([nn.relu])), "jax": JaxLayer(half)}
    for which, layer in layers.items():
        keras.Sequential([keras.Input((6,)), layer]).save(folder / f"{which}.keras")
    return folder


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A folder to be in, with a module on the path that says when it is imported."""
    (tmp_path / "planted.py").write_text(f"open('{MARK}', 'w')\ndef run(inputs):\n    return inputs * 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("planted", None)


def edited(good, folder, change):
    """Writes a good file whose layer has another config, and returns where."""
    which = "jax" if {"call_fn", "params"} & change.keys() else "flax"
    with zipfile.ZipFile(good / f"{which}.keras") as old, zipfile.ZipFile(folder / "bad.keras", "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member == "config.json":
                config = json.loads(content)
                layer = config["config"]["layers"][1]
                layer["build_config"] = change.get("build", layer["build_config"])
                layer["config"] |= {key: value for key, value in change.items() if key != "build"}
                content = json.dumps(config).encode()
            new.writestr(member, content)
    return folder / "bad.keras"


def test_the_good_files_are_good(good, planted):
    for change in ({}, {"call_fn": name(HERE, "half")}):
        keras.saving.load_model(edited(good, planted, change))


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused(what, good, planted):
    change, message = HOSTILE[what]
    path = edited(good, planted, change)
    imported, files = set(sys.modules), set(planted.rglob("*"))
    CALLED.clear()
    with pytest.raises(StructureError, match=message):
        keras.saving.load_model(path)
    assert not CALLED and set(planted.rglob("*")) == files
    assert not set(sys.modules) - imported


def test_keras_says_how_it_loads(good, planted, monkeypatch):
    seen = []
    read = saving.read
    monkeypatch.setattr(saving, "read", lambda *args: seen.append(_keras_private.safe_mode()) or read(*args))
    for mode in (True, False):
        keras.saving.load_model(good / "flax.keras", safe_mode=mode)
    FlaxLayer.from_config(FlaxLayer(Net()).get_config())
    assert seen == [True, False, None]


@pytest.mark.parametrize("advice", [{"safe_mode": False}, "custom_objects"])
def test_who_trusts_a_file_loads_it(advice, good, planted):
    path = edited(good, planted, {"call_fn": name("planted", "run")})
    if advice == "custom_objects":
        advice = {"custom_objects": {"run": importlib.import_module("planted").run}}
    loaded = keras.saving.load_model(path, **advice)
    assert loaded.predict(np.ones((1, 6)), verbose=0).tolist() == [[3.0] * 6]


def test_an_installed_package_needs_the_advice_that_the_error_gives(good, tmp_path, monkeypatch):
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "pets.py").write_text("class Shop:\n    @staticmethod\n    def run(inputs):\n        return inputs * 3\n")
    monkeypatch.syspath_prepend(str(folder))
    pets = importlib.import_module("pets")
    path = edited(good, tmp_path, {"call_fn": name("pets", "Shop.run")})
    with pytest.raises(StructureError, match=r"installed.*`custom_objects=\{'run': pets\.Shop\.run\}`"):
        keras.saving.load_model(path)
    keras.saving.load_model(path, custom_objects={"run": pets.Shop.run})
    del sys.modules["pets"]


KNOWN = [
    *(nn.relu, jax.nn.gelu, jnp.tanh, jnp.add, jnp.mean, jax.lax.dot_general, jax.random.normal, nn.max_pool),
    *(
        nn.initializers.zeros,
        nn.initializers.lecun_normal,
        nn.Dense,
        nn.LSTMCell,
        nnx.Linear,
        nnx.BatchStat,
        eqx.nn.Linear,
    ),
    *(hk.Linear, hk.nets.MLP, Net, loud, Loud.double, Shade.LIGHT, jax.lax.Precision.HIGHEST),
    *(jnp.bfloat16, np.dtype("float32"), jnp.int8, 1, 2.5, "text", None, True),
    functools.partial(nn.leaky_relu, negative_slope=0.1),
    nn.Sequential([nn.Dense(2, dtype=jnp.bfloat16), nn.relu, Net(3)]),
    {"a": (1, [2, {"b": nn.Dense}]), nnx.Param: "params"},
]


@pytest.mark.parametrize("value", KNOWN, ids=map(str, range(len(KNOWN))))
def test_what_models_are_made_of_is_loaded_in_safe_mode(value, monkeypatch):
    monkeypatch.setattr(_keras_private, "safe_mode", lambda: True)
    again = saving.unpack(json.loads(json.dumps(saving.pack(value, "It"))))
    if isinstance(value, functools.partial):
        assert (again.func, again.args, again.keywords) == (value.func, value.args, value.keywords)
    else:
        assert again == value or np.dtype(again) == np.dtype(value)


def test_the_list_names_no_module_and_nothing_that_reads_files():
    never = {
        "save",
        "savez",
        "savetxt",
        "load",
        "fromfile",
        "memmap",
        "pure_callback",
        "io_callback",
        "vectorize",
        "map",
    }
    for namespace, names in NAMES.items():
        assert not names & never, namespace
        found = vars(importlib.import_module(namespace))
        assert not [n for n in names if isinstance(found.get(n), type(sys))], namespace


def test_arrays_of_a_config_take_no_memory_before_weights_are_loaded():
    module = saving.unpack(array([10**7, 100]))
    assert module.weight.shape == (10**7, 100) and module.weight.strides == (0, 0) and np.isnan(module.weight[0, 0])


assert system  # it is here for files to find
