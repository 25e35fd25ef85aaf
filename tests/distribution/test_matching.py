"""Keys are matched as the installed Keras matches them, whichever way that is."""

import keras
import pytest

from jaxbridge.distribution.matching import matching_keys, one_key
from jaxbridge.errors import ShardingError

PATHS = ["net/params/Dense_0/kernel", "net/params/Dense_0/bias", "net/params/Dense_1/kernel", "kernel", "other"]
KEYS = [
    ["net/params/Dense_0/kernel"],
    [".*kernel"],
    ["kernel"],  # all of a path for fullmatch, a part of it for search
    ["Dense_0"],
    [".*kernel", "net/.*"],
    ["net/params/Dense_0/kernel", ".*kernel"],
    [".*/Dense_[01]/(kernel|bias)"],
    [],
]


def layout_map(keys):
    result = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1,), ["m"], ["cpu:0"]))
    for key in keys:
        result[key] = (None,)
    return result


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_as_keras_does(keys, path):
    by_name = layout_map(keys)
    found = matching_keys(by_name, [path])
    if len(found) > 1:
        with pytest.raises(ValueError, match="matches multiple layout"):
            by_name[path]
    else:
        assert by_name[path] is (by_name[found[0]] if found else None)


def test_any_of_several_names():
    assert matching_keys(layout_map(["d1.kernel", ".*bias"]), ["m/dense/kernel", "d1.kernel"]) == ["d1.kernel"]


def test_several_keys_are_named():
    with pytest.raises(ShardingError, match=r"'net/w' matches 2 keys of the LayoutMap: '\.\*w', 'net/\.\*'"):
        one_key(layout_map([".*w", "net/.*"]), "net/w", ["net/w"])


def test_what_is_no_expression_is_named():
    with pytest.raises(ShardingError, match=r"'\*w' is no regular expression"):
        one_key(layout_map(["*w"]), "net/w", ["net/w"])
