"""Names of the leaves of a pytree, and a sentence that says how two structures differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def path_text(path: Sequence[Any]) -> str:
    """Returns a key path as text, its parts joined by slashes: `Dense_0/kernel`."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def leaf_paths(tree: Any, prefix: str = "") -> list[str]:
    """Returns the path of every leaf of `tree`, in the order of `jax.tree.leaves`, each below `prefix`.

    Example:
        >>> leaf_paths({"Dense_0": {"bias": 0, "kernel": 1}}, "params")
        ['params/Dense_0/bias', 'params/Dense_0/kernel']
    """
    paths = [path_text(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return ["/".join(part for part in (prefix, path) if part) for path in paths]


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is a value (an array or a number), not configuration such as a name or a function."""
    return (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or isinstance(leaf, bool | int | float | complex)


def clean_path(path: str) -> str:
    """Returns `path` with every part made of letters, digits, `_` and `-` only, and starting with a letter or digit.

    Graph scopes of TensorFlow refuse anything else, and a refused scope leaves Keras' own stack of scopes dirty: every
    later variable of the process would get a wrong path (keras 3.15).
    """
    parts = [re.sub(r"[^A-Za-z0-9_-]", "_", part).lstrip("_-") for part in path.split("/") if part]
    return "/".join(part or "x" for part in parts) or "value"


def clean_paths(paths: Sequence[str]) -> list[str]:
    """Returns `paths` cleaned by `clean_path` and kept distinct: where two would become one, the later gets a number.

    A path is also kept apart from the folders of the others, since a name cannot be both a variable and a scope.
    """
    folders: set[str] = set()
    for path in paths:
        parts = clean_path(path).split("/")
        folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
    # A path that needs no cleaning keeps its name, whatever the others are called.
    unchanged = {path for path in paths if clean_path(path) == path and path not in folders}
    taken: set[str] = set()
    cleaned = []
    for path in paths:
        name = base = clean_path(path)
        number = 0
        while name in taken or name in folders or (name in unchanged and name != path):
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        cleaned.append(name)
    return cleaned


def plain_containers(tree: Any) -> Any:
    """Returns a pytree with the dicts, lists and tuples unwrapped that Keras and `tf.Module` wrap for their attributes.

    They are subclasses or proxies of the built-in types, which JAX takes for leaves.
    """

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return plain_containers(dict(leaf))
        if isinstance(leaf, list):
            return plain_containers(list(leaf))
        if isinstance(leaf, tuple) and hasattr(leaf, "__wrapped__"):
            return plain_containers(leaf.__wrapped__)  # pyright: ignore[reportAttributeAccessIssue]
        return leaf

    return jax.tree.map(plain, tree)


def describe_leaf(leaf: Any) -> str:
    """Returns a leaf as people write it: `float32[8, 4]`, or the type's name where it is no array."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return type(leaf).__name__
    return f"{getattr(dtype, 'name', dtype)}[{', '.join('None' if d is None else str(d) for d in shape)}]"


def structure_difference(expected: Any, got: Any, *, prefix: str = "") -> str | None:
    """Says where the structure of `got` first differs from that of `expected`; None when they are equal.

    Example:
        >>> structure_difference({"mean": 0, "count": 0}, {"mean": 0})
        "'count' is missing"
    """
    if jax.tree.structure(expected) == jax.tree.structure(got):
        return None
    kind_of_expected, children_of_expected = _one_level(expected)
    kind_of_got, children_of_got = _one_level(got)
    where = f"'{prefix}'" if prefix else "the top level"
    if kind_of_expected is not kind_of_got:
        return f"at {where} a {_kind_name(kind_of_expected)} was expected and a {_kind_name(kind_of_got)} came"
    for name in children_of_expected:
        if name not in children_of_got:
            return f"'{_join(prefix, name)}' is missing"
    for name in children_of_got:
        if name not in children_of_expected:
            return f"'{_join(prefix, name)}' was not expected"
    for name, child in children_of_expected.items():
        difference = structure_difference(child, children_of_got[name], prefix=_join(prefix, name))
        if difference is not None:
            return difference
    return f"at {where} the nodes of type {_kind_name(kind_of_expected)} carry different static data"


def leaf_difference(expected: Any, got: Any, *, prefix: str = "") -> str | None:
    """Says where structure, shape or dtype of `got` first differs from `expected`; None when all agree.

    Sizes that are None or symbolic on either side agree with everything.
    """
    difference = structure_difference(expected, got, prefix=prefix)
    if difference is not None:
        return difference
    for path, want, have in zip(
        leaf_paths(expected, prefix), jax.tree.leaves(expected), jax.tree.leaves(got), strict=True
    ):
        if not hasattr(want, "shape"):
            continue
        if not hasattr(have, "shape"):
            have = np.asarray(have)
        same_shape = len(want.shape) == len(have.shape) and all(
            a == b or not isinstance(a, int) or not isinstance(b, int)
            for a, b in zip(want.shape, have.shape, strict=True)
        )
        if not same_shape or _dtype_name(want) != _dtype_name(have):
            return f"'{path}' was {describe_leaf(want)} and is now {describe_leaf(have)}"
    return None


def _dtype_name(leaf: Any) -> str:
    return getattr(leaf.dtype, "name", str(leaf.dtype))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _kind_name(kind: type | None) -> str:
    return "leaf" if kind is None else "None" if kind is type(None) else kind.__name__


def _one_level(tree: Any) -> tuple[type | None, dict[str, Any]]:
    """Returns the type of the node (None for a leaf) and its children by name."""
    if tree is None:
        return type(None), {}
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    if len(pairs) == 1 and not pairs[0][0]:
        return None, {}
    return type(tree), {path_text(path): child for path, child in pairs}
