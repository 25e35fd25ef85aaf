"""Dtypes, structures and kinds of arguments and results."""

import collections
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from jaxbridge.errors import ConversionError, SignatureError
from tests.jax2tf.helpers import assert_same, run_python

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype(dtype: str):
    """64 bits are narrowed, as JAX does."""
    x = np.array([[0, 1], [2, 3]]).astype(jnp.dtype(dtype))
    got = jax2tf.convert(lambda x: (x, x.T))(x)
    assert [t.dtype for t in got] == [tf.as_dtype(NARROWED.get(dtype, dtype))] * 2
    np.testing.assert_array_equal(got[0].numpy().astype("complex64"), x.astype("complex64"))


def test_dtypes_with_x64():
    """64 bits stay, Python scalars have them, and gradients come in them."""
    printed = run_python(
        """
        import json, jax.numpy as jnp, numpy as np, tensorflow as tf
        from jaxbridge import jax2tf
        f = jax2tf.convert(lambda x: x * 2)
        names = ["int64", "uint64", "float64", "complex128", "float32", "int32"]
        found = {name: f(np.ones(2, name)).dtype.name for name in names}
        found |= {"int": f(2).dtype.name, "float": f(1.5).dtype.name, "big": int(f(2**40))}
        x = tf.constant([0.1, 0.2], tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = jax2tf.convert(jnp.sin)(x)
        found["gradient"] = float(abs(tape.gradient(y, x) - tf.cos(x))[1])
        print(json.dumps(found))
        """,
        JAX_ENABLE_X64="1",
    )
    found = json.loads(printed)
    assert found.pop("gradient") < 1e-12
    assert found.pop("big") == 2**41
    assert (found.pop("int"), found.pop("float")) == ("int64", "float64")
    assert all(name == dtype for name, dtype in found.items())


Point = collections.namedtuple("Point", ["x", "y"])

STRUCTURES = {
    "dict": {"b": 1.0, "a": 2.0},
    "list": [1.0, [2.0, 3.0]],
    "tuple": (1.0, (2.0,)),
    "namedtuple": Point(1.0, {"z": 2.0}),
    "none": {"a": 1.0, "none": None, "b": [None, 2.0]},
    "ordered": collections.OrderedDict(z=1.0, a=2.0),
    "empty": {"a": 1.0, "empty": (), "nothing": {}},
    "integer_keys": {1: 1.0, 0: 2.0},
}


@pytest.mark.parametrize("name", list(STRUCTURES))
@pytest.mark.parametrize("shapes", [None, "...", "b, ..."])
def test_structure_of_arguments_and_results(name: str, shapes: str | None):
    tree = jax.tree.map(lambda value: np.full((2, 1), value, np.float32), STRUCTURES[name])
    double = lambda tree: jax.tree.map(lambda x: x * 2, tree)
    assert_same(jax2tf.convert(double, polymorphic_shapes=shapes)(tree), double(tree))


@pytest.mark.parametrize("result", [(), None, {"a": None}])
def test_result_without_tensors(result: Any):
    assert jax2tf.convert(lambda x: result)(1.0) == result


VALUES = {
    "int": (3, "int32"),
    "float": (3.0, "float32"),
    "bool": (True, "bool"),
    "complex": (3j, "complex64"),
    "numpy_scalar": (np.float64(3), "float32"),
    "numpy": (np.arange(3.0), "float32"),
    "jax": (jnp.arange(3), "int32"),
    "jax_bfloat16": (jnp.ones(3, "bfloat16"), "bfloat16"),
    "tensor": (tf.constant([3]), "int32"),
    "variable": (tf.Variable([3.0]), "float32"),
}


@pytest.mark.parametrize("name", list(VALUES))
def test_kind_of_argument(name: str):
    value, dtype = VALUES[name]
    got = jax2tf.convert(lambda x: x)(value)
    assert isinstance(got, tf.Tensor)
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.numpy().astype("complex64"), np.asarray(value).astype("complex64"))
    assert jax2tf.dtype_of_val(value).name == dtype


def test_containers_of_a_module():
    """`tf.Module` wraps lists, dicts and tuples that are its attributes."""
    module = tf.Module()
    module.params = {"w": tf.Variable([1.0]), "more": [tf.Variable([2.0]), (tf.Variable([3.0]), tf.Variable([4.0]))]}
    converted = jax2tf.convert(lambda p: p["w"] + p["more"][0] + p["more"][1][0] + p["more"][1][1])
    assert converted(module.params).numpy() == [10.0]


def test_keyword_arguments():
    converted = jax2tf.convert(lambda x, *, scale: x * scale["s"], polymorphic_shapes=["(b,)"])
    np.testing.assert_array_equal(converted(np.ones(2, "float32"), scale={"s": 3.0}), [3, 3])
    np.testing.assert_array_equal(converted(np.ones(4, "float32"), scale={"s": 3.0}), [3] * 4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_defaults_stay_python_values(wrapped: bool):
    """`tf.function` fills in defaults, and an axis that is a tensor would be a tracer in JAX."""

    def total(x, axis=0, *, keepdims=False):
        return jnp.sum(x, axis=axis, keepdims=keepdims)

    converted = jax2tf.convert(total)
    got = (tf.function(converted) if wrapped else converted)(np.ones((2, 3), "float32"))
    np.testing.assert_array_equal(got, [2, 2, 2])


def test_names_of_parameters_are_those_of_the_function():
    converted = jax2tf.convert(lambda image, label: image + label)
    function = tf.function(converted).get_concrete_function(tf.TensorSpec(()), tf.TensorSpec(()))
    assert [spec.name for spec in function.structured_input_signature[0]] == ["image", "label"]


def test_unused_arguments():
    converted = jax2tf.convert(lambda a, unused, b: a - b, polymorphic_shapes=["b, ...", None, "b, ..."])
    x = np.float32([[1, 2]])
    np.testing.assert_array_equal(converted(x, np.zeros((7, 7)), x), x - x)


REFUSED = {
    "object": (object(), "Argument '0' of type object cannot be made into a tensor"),
    "string": ("text", "JAX has no arrays of dtype string"),
    "string_tensor": (tf.constant("text"), "Argument '0' is .*look texts up first"),
    "ragged": (tf.ragged.constant([[1], [1, 2]]), "Argument '0' is a RaggedTensor.*to_tensor"),
    "key": (jax.random.key(0), "key_data"),
    "overflow": (2**40, "Argument '0' of type int cannot be made into a tensor"),
    "in_a_dict": ({"a": {"b": object()}}, "Argument '0/a/b' of type object"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_no_argument(name: str):
    value, message = REFUSED[name]
    with pytest.raises(ConversionError, match=message):
        jax2tf.convert(lambda x: x)(value)


NO_OUTPUT = {
    "a key": (lambda x: {"k": jax.random.key(0), "x": x}, r"Output 'k' is a typed key \(key<fry>\).*key_data"),
    "a key alone": (lambda x: jax.random.key(0), "The output is a typed key"),
    "a text": (lambda x: (x, ["a"]), "Output '1/0' is 'a' of type str. A converted function returns"),
    "texts": (lambda x: (x, np.array(["a"])), "Output '1' is array.* of type ndarray"),
    "an object": (lambda x: {"f": test_no_function}, "Output 'f' is .* of type function"),
}


@pytest.mark.parametrize("name", list(NO_OUTPUT))
def test_no_output(name: str):
    function, message = NO_OUTPUT[name]
    with pytest.raises(ConversionError, match=message):
        jax2tf.convert(function)(np.float32(1))


def test_numbers_as_outputs():
    got = jax2tf.convert(lambda x: (x, 3, 2.5, True, None, np.float16(2), np.arange(2)))(np.float32(1))
    assert [None if value is None else value.dtype.name for value in got] == [
        *("float32", "int32", "float32", "bool", None, "float16", "int32")
    ]


def test_platforms_are_named_once():
    with pytest.raises(SignatureError, match="each platform once"):
        jax2tf.convert(jnp.sin, native_serialization_platforms=("cpu", "cpu"))


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad, jax.vmap])
def test_tracer(transformation: Any):
    with pytest.raises(ConversionError, match=r"JAX tracer.*Call the JAX function itself"):
        transformation(jax2tf.convert(jnp.sin))(np.ones((), "float32") if transformation is jax.grad else np.ones(2))


def test_no_function():
    with pytest.raises(SignatureError, match="`fun_jax` must be a function"):
        jax2tf.convert(3)  # pyright: ignore[reportArgumentType]
