"""Parts of a tensor, as `numpy.array_split` makes them; joining them is the inverse."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from jaxbridge.distribution import gathered, join_split_tensor, split_tensor_for_parallelism
from jaxbridge.errors import ShardingError

TENSORS = {"numpy": np.asarray, "jax": jnp.asarray, "backend": keras.ops.convert_to_tensor, "variable": keras.Variable}
SHAPES = [((size, 3), 0) for size in (1, 5, 7, 8, 9, 17)] + [((2, 11, 3), 1), ((2, 3, 13), -1), ((0, 2), 0)]


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_parts_are_those_of_array_split_and_join_to_the_whole(kind, shape, dim):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    tensor = TENSORS[kind](x)
    for count in range(1, 9):
        parts = [split_tensor_for_parallelism(tensor, index, count, dim) for index in range(count)]
        for part, expected in zip(parts, np.array_split(x, count, dim), strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(part), expected)
        whole = join_split_tensor(parts, dim)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(whole), x)
        if kind in ("numpy", "jax"):
            assert isinstance(whole, np.ndarray if kind == "numpy" else jnp.ndarray)


@pytest.mark.parametrize("kind", ["jax", "backend"])
def test_a_part_of_an_index_that_is_a_tensor_is_padded(kind):
    x = np.random.default_rng(0).normal(size=(7, 2)).astype("float32")
    for index, expected in enumerate(np.array_split(x, 3)):
        part = split_tensor_for_parallelism(TENSORS[kind](x), TENSORS[kind](np.int32(index)), 3, 0)
        padded = np.concatenate([expected, np.zeros((3 - len(expected), 2), "float32")])
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(part), padded)


ERRORS = {
    "an index that there is not": (lambda: split_tensor_for_parallelism(np.ones(4), 2, 2, 0), r"from 0 to 1.*got 2"),
    "no device": (lambda: split_tensor_for_parallelism(np.ones(4), 0, 0, 0), r"`device_count`.*at least 1, got 0"),
    "a dimension that there is not": (lambda: split_tensor_for_parallelism(np.ones(4), 0, 2, 1), r"`dim=1` is no axis"),
    "no part": (lambda: join_split_tensor([], 0), "at least one"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, text = ERRORS[name]
    with pytest.raises(ShardingError, match=text):
        call()


def test_gathered_leaves_a_model_of_one_process_as_it_is():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    before = [variable.value for variable in model.variables]
    with gathered(model):
        inside = [keras.ops.convert_to_numpy(variable.value) for variable in model.variables]
    assert all(variable.value is value for variable, value in zip(model.variables, before, strict=True))
    for value, expected in zip(inside, before, strict=True):
        np.testing.assert_array_equal(value, keras.ops.convert_to_numpy(expected))
