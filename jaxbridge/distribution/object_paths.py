"""What a layer is called by the objects that hold it: names of attributes, positions in lists, names of layers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import keras


@functools.cache
def own_attributes() -> frozenset[str]:
    """Returns the attributes that Keras itself gives models: caches of what hangs on other attributes.

    Makes models when it is first asked, so ask it outside of a scope. They have names, so as to take no number from those
    that Keras makes up.
    """
    inputs, layer = keras.Input((1,), name="x"), keras.layers.Identity(name="y")
    functional = keras.Model(inputs, layer(inputs), name="x")
    models = functional, keras.Model(name="x"), keras.Sequential(name="x"), layer
    return frozenset(name for model in models for name in vars(model))


def attributes(holder: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields what a layer holds of a kind, in attributes and in lists and dicts that are attributes, with its name."""
    for name, value in list(vars(holder).items()):
        if name not in own_attributes():
            yield from _found(value, name, kind)


def _found(value: Any, name: str, kind: type) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _found(item, f"{name}/{key}", kind)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _found(item, f"{name}/{index}", kind)


def children(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields the layers right below one, each with its name there: of its attribute, and in a model its own too."""
    yield from attributes(layer, keras.layers.Layer)
    if isinstance(layer, keras.Model):
        yield from ((child.name, child) for child in layer.layers)


def subtree(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns a layer and all below it, each once."""
    found: dict[int, keras.layers.Layer] = {}

    def visit(node: keras.layers.Layer) -> None:
        if id(node) not in found:
            found[id(node)] = node
            for _, child in children(node):
                visit(child)

    visit(layer)
    return list(found.values())


class ObjectPaths:
    """The paths of layers from the outermost objects among some layers that hold them.

    Args:
        layers: the layers that may hold others.
    """

    def __init__(self, layers: Iterable[keras.layers.Layer]):
        self._holders: dict[int, list[tuple[keras.layers.Layer, str]]] = {}
        for holder in layers:
            for name, child in children(holder):
                self._holders.setdefault(id(child), []).append((holder, name))

    def prefixes(self, layer: keras.layers.Layer) -> list[str]:
        """Returns what stands before the names of a layer's variables: "block/d1"; "" for a model that nothing holds."""
        return list(dict.fromkeys(self._prefixes(layer, frozenset())))

    def _prefixes(self, layer: keras.layers.Layer, below: frozenset[int]) -> Iterator[str]:
        holders = [(holder, name) for holder, name in self._holders.get(id(layer), []) if id(holder) not in below]
        if not holders:
            yield layer.name
            if isinstance(layer, keras.Model):
                yield ""
        for holder, name in holders:
            for above in self._prefixes(holder, below | {id(layer)}):
                yield f"{above}/{name}" if above else name


def own_variables(layer: keras.layers.Layer) -> list[tuple[keras.Variable, list[str]]]:
    """Returns the variables of a layer that are not of a layer below it, each with its names in the layer."""
    below = {id(variable) for _, child in children(layer) for variable in child.variables}
    by_attribute: dict[int, list[str]] = {}
    for name, variable in attributes(layer, keras.Variable):
        by_attribute.setdefault(id(variable), []).append(name)
    return [
        (variable, [path_in(layer, variable.path) or variable.name, *by_attribute.get(id(variable), [])])
        for variable in layer.variables
        if id(variable) not in below
    ]


def path_in(layer: keras.layers.Layer, path: str) -> str | None:
    """Returns the part of a variable's path below a layer; None if it is not below it."""
    start = f"{layer.path}/"
    return path.removeprefix(start) if path.startswith(start) else None
