"""Names of leaves: readable, clean, distinct; and sentences that say how structures differ."""

import dataclasses
import random
import re
from typing import Any, NamedTuple

import flax.core
import jax
import numpy as np
import pytest

from jaxbridge.core.tree_paths import clean_path, clean_paths, leaf_difference, leaf_paths, structure_difference


class Point(NamedTuple):
    x: Any
    y: Any


class Other(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    a: Any
    b: Any


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, child, static):
        self.child, self.static = child, static

    def tree_flatten(self):
        return (self.child,), self.static

    @classmethod
    def tree_unflatten(cls, static, children):
        return cls(*children, static)


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        ({"b": 1, "a": 2}, ["a", "b"]),
        ({"a": [1, (2, 3)]}, ["a/0", "a/1/0", "a/1/1"]),
        (Point(1, {"k": 2}), ["x", "y/k"]),
        (Data(1, [2]), ["a", "b/0"]),
        ({"a": None, "b": 1}, ["b"]),
        (1, [""]),
    ],
    ids=str,
)
def test_leaf_paths(tree, paths):
    assert leaf_paths(tree) == paths


def test_leaf_paths_below_a_prefix():
    assert leaf_paths({"a": 1}, "params") == ["params/a"] and leaf_paths(1, "params") == ["params"]


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("Dense_0/kernel", "Dense_0/kernel"),
        ("linear/~/w", "linear/x/w"),
        ("a b", "a_b"),
        ("_hidden", "hidden"),
        ("-x", "x"),
        ("über", "ber"),
        ("a.b", "a_b"),
        ("", "value"),
        ("f(x):0", "f_x__0"),
    ],
)
def test_clean_path(path, clean):
    assert clean_path(path) == clean


TABLE = [
    ["a", "b"],
    ["a b", "a_b", "a~b"],
    ["a~b", "a_b"],
    ["a", "a/b"],
    ["~", "~~", "x"],
    ["a b/c", "a_b/c", "a_b"],
    ["a_b_1", "a b", "a_b", "a~b"],
    ["", "value", "value/x"],
    ["x/~/a", "x/x/a", "x/_/a"],
    ["a/b", "a", "a_1", "a b"],
]
VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(/[A-Za-z0-9][A-Za-z0-9_-]*)*")


def assert_distinct(paths):
    cleaned = clean_paths(paths)
    assert len(set(cleaned)) == len(cleaned) == len(paths), (paths, cleaned)
    assert all(VALID.fullmatch(path) for path in cleaned), cleaned
    # No path is the folder of another.
    assert not any(b.startswith(a + "/") for a in cleaned for b in cleaned), cleaned
    assert all(new == old for old, new in zip(paths, cleaned, strict=True) if is_clean(old, paths)), (paths, cleaned)


def is_clean(path, paths):
    folders = {"/".join(clean_path(p).split("/")[:end]) for p in paths for end in range(1, p.count("/") + 1)}
    return VALID.fullmatch(path) is not None and path not in folders


@pytest.mark.parametrize("paths", TABLE, ids=str)
def test_clean_paths_are_distinct(paths):
    assert_distinct(paths)


def test_clean_paths_are_distinct_for_random_names():
    rng = random.Random(0)
    for _ in range(3000):
        names = {
            "/".join(rng.choices(["a", "a b", "a_b", "~", "_", "1", "a_1"], k=rng.randint(1, 3))) for _ in range(5)
        }
        assert_distinct(sorted(names, key=lambda _: rng.random()))


ZERO = np.zeros(2, "float32")


@pytest.mark.parametrize(
    ("expected", "got", "sentence"),
    [
        ({"a": 1}, {"a": 2}, None),
        ({"a": 1, "b": 1}, {"a": 1}, "'b' is missing"),
        ({"a": 1}, {"a": 1, "b": 1}, "'b' was not expected"),
        ({"a": {"b": 1}}, {"a": {}}, "'a/b' is missing"),
        ({"a": 1}, [1], "at the top level a dict was expected and a list came"),
        ({"a": [1, 2]}, {"a": (1, 2)}, "at 'a' a list was expected and a tuple came"),
        ([1, 2], [1], "'1' is missing"),
        ((1,), (1, 2), "'1' was not expected"),
        (Point(1, 2), Other(1, 2), "at the top level a Point was expected and a Other came"),
        (Point(1, [2]), Point(1, [2, 3]), "'y/1' was not expected"),
        ({"a": None}, {"a": 1}, "at 'a' a None was expected and a leaf came"),
        ({"a": 1}, {"a": None}, "at 'a' a leaf was expected and a None came"),
        (1, {"a": 1}, "at the top level a leaf was expected and a dict came"),
        (Data(1, 2), Data(1, {"x": 2}), "at 'b' a leaf was expected and a dict came"),
        (flax.core.freeze({"a": 1}), {"a": 1}, "at the top level a FrozenDict was expected and a dict came"),
        (Node(1, "s"), Node(1, "t"), "at the top level the nodes of type Node carry different static data"),
        ({"a": Node(1, "s")}, {"a": Node(1, "t")}, "at 'a' the nodes of type Node carry different static data"),
        (None, None, None),
    ],
    ids=str,
)
def test_structure_difference(expected, got, sentence):
    assert structure_difference(expected, got) == sentence


def test_every_random_difference_is_said():
    rng = random.Random(1)

    def tree(depth):
        kind = rng.choice(["leaf", "none", "dict", "list", "tuple", "point"]) if depth else "leaf"
        children = [tree(depth - 1) for _ in range(2)] if kind not in ("leaf", "none") else []
        return {
            "leaf": lambda: 1,
            "none": lambda: None,
            "dict": lambda: dict(zip(rng.sample("abc", 2), children, strict=True)),
            "list": lambda: children,
            "tuple": lambda: tuple(children),
            "point": lambda: Point(*children),
        }[kind]()

    for _ in range(2000):
        one, two = tree(3), tree(3)
        equal = jax.tree.structure(one) == jax.tree.structure(two)
        assert (structure_difference(one, two) is None) == equal


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        ({"m": ZERO}, None),
        ({"m": np.zeros(3, "float32")}, "'m' was float32[2] and is now float32[3]"),
        ({"m": np.zeros((2, 1), "float32")}, "'m' was float32[2] and is now float32[2, 1]"),
        ({"m": np.zeros(2, "int32")}, "'m' was float32[2] and is now int32[2]"),
        ({}, "'m' is missing"),
    ],
    ids=str,
)
def test_leaf_difference(got, sentence):
    assert leaf_difference({"m": ZERO}, got) == sentence
