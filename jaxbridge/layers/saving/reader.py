"""All that a layer's config names: parsed, then checked, then built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxbridge.errors import StructureError
from jaxbridge.layers.saving import keras_form
from jaxbridge.layers.saving.methods import check_method
from jaxbridge.layers.saving.names import Names
from jaxbridge.layers.saving.nodes import Dict, Keras, List, Node, Plain, Tuple, check_words, parse


@dataclasses.dataclass(frozen=True)
class Argument:
    """What an argument of a layer may be in a config.

    Attributes:
        parse: makes a node of what the config holds and of its place.
        kinds: the kinds of node that it may be, or None for any; nothing is always allowed.
        values: the types of a plain value.
        words: whether it is a dict of keyword arguments.
    """

    parse: Callable[[Any, str], Node] = parse
    kinds: tuple[type[Node], ...] | None = None
    values: tuple[type, ...] = ()
    words: bool = False

    def read(self, packed: Any, where: str) -> Node:
        """Returns what a config holds for the argument.

        Raises:
            StructureError: it is no such value.
        """
        node = self.parse(packed, where)
        # What no file can hold was given to `from_config` by a program, and is its own business.
        is_said = not isinstance(node, Plain) or isinstance(node.value, bool | int | float | str)
        is_fit = (
            type(node.value) in self.values if isinstance(node, Plain) else self.kinds and isinstance(node, self.kinds)
        )
        if self.kinds is not None and is_said and not is_fit:
            raise StructureError(f"{where}: the file is damaged: this argument cannot be {packed!r:.80}.")
        if self.words:
            check_words(node, where)
        return node


class Variables(Node):
    """Params or state without values."""

    def __init__(self, where: str, config: Any):
        super().__init__(where)
        self._config, self._tree = config, None

    def check(self, names: Names) -> None:
        self._tree = keras_form.tensors(self._config, self.where, names)

    def build(self) -> Any:
        return jax.tree.map(keras_form.array_of, self._tree)


def _variables(packed: Any, where: str) -> Node:
    return Variables(where, packed) if isinstance(packed, dict | list) else Plain(where, packed)


def _keras(packed: Any, where: str) -> Node:
    return Keras(where, packed, is_built=False)


#: Anything that `pack` and `pack_function` write; and those that have a form.
ANY = Argument()
SEQUENCE = Argument(kinds=(List, Tuple))
MAPPING = Argument(kinds=(Dict,))
WORDS = Argument(kinds=(Dict,), words=True)
NAMES = Argument(kinds=(List, Tuple, Dict))
FLAG = Argument(kinds=(Dict,), values=(str,))
BOOL = Argument(kinds=(), values=(bool,))

#: Pytrees that `config.pack_arrays` writes.
VARIABLES = Argument(_variables)

#: An argument that Keras makes an object of by itself.
KERAS = Argument(_keras)


def read(config: Mapping[str, Any], arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """Returns a layer's config with the arguments in it that are packed as they were before.

    Raises:
        StructureError: the config is damaged, or names what a file may not name; nothing has been called or made.
    """
    names = Names.now()
    nodes = {name: kind.read(config[name], f"`{name}`") for name, kind in arguments.items() if name in config}
    for node in nodes.values():
        node.check(names)
    module, method = nodes.get("module"), nodes.get("method")
    if module is not None and isinstance(method, Plain) and isinstance(method.value, str):
        check_method(module.made_class(), method.value, method.where)
    return {**config, **{name: node.build() for name, node in nodes.items()}}


def unpack(packed: Any, where: str = "The value") -> Any:
    """Returns the value that `pack` wrote; see `read`."""
    return read({where: packed}, {where: Argument(lambda it, _: parse(it, where))})[where]
