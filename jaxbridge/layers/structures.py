"""Pytrees that JAX knows and Keras does not, as ones that both know."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras

from jaxbridge.core.dense import refusal
from jaxbridge.core.tree_paths import path_text
from jaxbridge.errors import SignatureError, StructureError

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def known_to_keras(tree: Any, path: str = "") -> Any:
    """Returns outputs in the structures of a Keras graph: dicts, lists, tuples and named tuples of tensors.

    Other mappings (FrozenDict) and objects with fields (dataclasses that JAX knows, `eqx.Module`) become dicts by the names
    of their fields, in which a field that is None is left out; so does a named tuple that has one. At the end of a tuple or
    list None is left out too.

    Args:
        tree: the outputs.
        path: where they are, for messages.

    Raises:
        StructureError: in a tuple or list something comes after a None.
    """
    if jax.tree_util.all_leaves([tree]):
        return tree
    kind = type(tree)
    at = lambda name: f"{path}/{name}" if path else str(name)
    if isinstance(tree, Mapping):
        return _dict(tree.items(), at)
    if hasattr(kind, "_fields") and isinstance(tree, tuple):
        if any(child is None for child in tree):
            return _dict(zip(kind._fields, tree, strict=True), at)  # pyright: ignore[reportAttributeAccessIssue]
        return kind(*(known_to_keras(child, at(name)) for name, child in zip(kind._fields, tree, strict=True)))  # pyright: ignore
    if kind in (list, tuple):
        return kind(_sequence(list(tree), path, at))
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    if all(isinstance(key, jax.tree_util.FlattenedIndexKey) for (key, *_), _ in pairs):
        return tuple(_sequence([child for _, child in pairs], path, at))
    return _dict([(path_text(key), child) for key, child in pairs], at)


def _dict(items: Any, at: Any) -> dict[Any, Any]:
    return {name: known_to_keras(child, at(name)) for name, child in items if child is not None}


def _sequence(children: list[Any], path: str, at: Any) -> list[Any]:
    while children and children[-1] is None:
        children.pop()
    if any(child is None for child in children):
        where = f"The output '{path}'" if path else "The output"
        raise StructureError(
            f"{where} has None at place {children.index(None)} of {len(children)}, and a Keras model holds tensors only. "
            "Return a dict, in which what is None can be left out."
        )
    return [known_to_keras(child, at(index)) for index, child in enumerate(children)]


def check_inputs(args: Any, kwargs: Any, takes_sparse: bool) -> None:
    """Raises if an input is something that cannot be given to a layer.

    Keras takes tensors only by position; by name anything, in whose inside it finds no tensors of a graph.

    Args:
        args: the inputs by position.
        kwargs: the inputs by name.
        takes_sparse: whether the backend has the sparse arrays of JAX.

    Raises:
        SignatureError: an input is no dense array of numbers.
        StructureError: tensors are in a structure that Keras does not look into.
    """
    for number, leaf in enumerate(keras.tree.flatten((args, kwargs))):
        refused = refusal(leaf, takes_sparse)
        if refused is not None:
            raise SignatureError(f"Input {number} of the layer is {refused}")
    by_position = [_opaque(leaf, lambda inner: hasattr(inner, "shape")) for leaf in keras.tree.flatten(args)]
    by_name = [_opaque(leaf, lambda inner: isinstance(inner, keras.KerasTensor)) for leaf in keras.tree.flatten(kwargs)]
    for name in filter(None, [*by_position, *by_name]):
        raise StructureError(
            f"An input is a {name}, and Keras does not look into it to find its tensors. Call the layer with dicts, lists or "
            f"tuples of tensors, and make the {name} inside: `method=lambda module, fields: module({name}(**fields))`, "
            "then `layer({'name': tensor, ...})`."
        )


def _opaque(leaf: Any, is_tensor: Callable[[Any], bool]) -> str | None:
    """Returns the name of a leaf's class, if JAX finds tensors in it."""
    if jax.tree_util.all_leaves([leaf]) or not any(map(is_tensor, jax.tree.leaves(leaf))):
        return None
    return type(leaf).__name__
