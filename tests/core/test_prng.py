"""The rule by which seeds become keys."""

import zlib

import jax
import numpy as np
import pytest

from jaxbridge.core import prng
from tests.cases import draw_key


def data(key):
    return np.asarray(jax.random.key_data(key))


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
@pytest.mark.parametrize(("seed", "n"), [(0, 0), (7, 3), (2**32 - 1, 5), (2**31, 2**31)])
def test_key_from_seed(seed, n, dtype):
    np.testing.assert_array_equal(data(prng.key_from_seed(np.array([seed, n], dtype))), data(draw_key(n, seed)))


def test_eight_draws_are_eight_keys():
    assert len({data(prng.key_from_seed(np.array([7, n]))).tobytes() for n in range(8)}) == 8


def test_init_seed_is_no_small_counter():
    assert prng.init_seed(7).tolist() == [7, zlib.crc32(b"init")]
    seeds = {tuple(prng.init_seed(7, index).tolist()) for index in range(5)}
    assert len(seeds) == 5 and all(n > 2**20 for _, n in seeds)


def test_streams_fold_in_the_crc_of_their_name():
    key = draw_key(2)
    streams = prng.stream_keys(key, ("params", "dropout"))
    assert list(streams) == ["params", "dropout"]
    for name, stream in streams.items():
        np.testing.assert_array_equal(data(stream), data(jax.random.fold_in(key, zlib.crc32(name.encode()))))


def test_a_dict_of_keys_names_its_streams():
    keys = {"dropout": draw_key(1)}
    assert prng.stream_keys(keys, ("params",)) == keys


def test_no_key_is_no_streams():
    assert prng.stream_keys(None, ("dropout",)) == {}


def test_seeds_of_a_structure_become_keys_leaf_by_leaf():
    keys = prng.keys_from_seeds({"a": np.array([7, 0]), "b": [np.array([7, 1])]})
    np.testing.assert_array_equal(data(keys["b"][0]), data(draw_key(1)))
    assert prng.keys_from_seeds(None) is None


def test_raw_keys_are_two_words():
    raw = prng.raw_keys({"a": draw_key(0)})
    assert raw["a"].shape == (2,) and raw["a"].dtype == np.uint32


@pytest.mark.parametrize("seed", [None, 0, 1, 2**32 - 1, np.int64(5), np.uint32(5)])
def test_good_seeds(seed):
    assert prng.check_seed(seed) == seed


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**32, ValueError), (1.0, TypeError), ("1", TypeError), (True, TypeError)]
)
def test_bad_seeds(seed, error):
    with pytest.raises(error, match="seed"):
        prng.check_seed(seed)
