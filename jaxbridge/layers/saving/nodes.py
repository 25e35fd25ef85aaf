"""What a layer's config can hold, a class per kind: how it is parsed, what of it is checked, how it is built.

All of a config is parsed, then all of it is checked, and only then anything is built: no function that a file names is called,
and no array is made, before the last name was found to be allowed. A new kind is one more class here, and a line in `pack.py`.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from jaxbridge import adapters
from jaxbridge.errors import StructureError
from jaxbridge.layers.saving import keras_form
from jaxbridge.layers.saving.allowed import KEY_WORDS, LIBRARIES
from jaxbridge.layers.saving.methods import check_method
from jaxbridge.layers.saving.names import Names, adapter_of
from jaxbridge.layers.saving.parts import (
    Parts,
    bytes_of,
    check_depth,
    check_keys,
    dtype_of,
    of_type,
    placeholder,
    shape_of,
)

#: The key of a packed value that is not itself; no dict that is packed has it, as dicts are packed as pairs.
KIND = "jaxbridge"


@dataclasses.dataclass(eq=False)
class Node(abc.ABC):
    """A value in a config.

    Attributes:
        where: how errors name its place.
    """

    where: str

    #: What the config calls the kind.
    kind: ClassVar[str] = ""

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        """Returns the value that a dict of a config describes."""
        raise NotImplementedError

    @abc.abstractmethod
    def check(self, names: Names) -> None:
        """Raises a StructureError if something in it may not be made; finds what its names stand for."""

    @abc.abstractmethod
    def build(self) -> Any:
        """Returns the value; only after everything was checked."""

    def made_class(self) -> type | None:
        """Returns the class of the value, or that is the value; None where it is of none that matters. After `check`."""
        return None


@dataclasses.dataclass(eq=False)
class Plain(Node):
    """What JSON has a word for; or what no file holds and a caller of `from_config` gave."""

    value: Any

    def check(self, names: Names) -> None:
        pass

    def build(self) -> Any:
        return self.value


@dataclasses.dataclass(eq=False)
class Items(Node):
    """Several values."""

    items: Sequence[Node]

    def check(self, names: Names) -> None:
        for item in self.items:
            item.check(names)

    def build(self) -> Any:
        return [item.build() for item in self.items]


class List(Items):
    """A list, for which JSON has a word."""


class Tuple(Items):
    kind = "tuple"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, _nodes(parts, "items"))

    def build(self) -> Any:
        return tuple(super().build())


class Dict(Items):
    """Keys and values in turn."""

    kind = "dict"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        found: list[Node] = []
        for number, pair in enumerate(parts.get("items", list)):
            where = f"{parts.where}, entry {number}"
            if len(of_type(pair, (list, tuple), where)) != 2:
                raise StructureError(f"{where}: the file is damaged: a key and a value must be there.")
            key = parse(pair[0], f"{where}, its key", parts.depth + 1)
            if not isinstance(key, Plain | Name | Dtype | Enum | Tuple):
                raise StructureError(f"{where}: the file is damaged: {pair[0]!r:.80} cannot be the key of a dict.")
            name = f"{parts.where}[{key.value!r:.80}]" if isinstance(key, Plain) else where
            found += [key, parse(pair[1], name, parts.depth + 1)]
        return cls(parts.where, found)

    def build(self) -> Any:
        values = super().build()
        return dict(zip(values[::2], values[1::2], strict=True))

    def keys(self) -> list[Any]:
        """Returns the keys that are plain values, and None for each other."""
        return [key.value if isinstance(key, Plain) else None for key in self.items[::2]]


@dataclasses.dataclass(eq=False)
class Name(Node):
    """A function or class by its name."""

    module: str
    name: str
    registered: str | None
    found: Any = None

    kind = "name"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, parts.text("module"), parts.text("name"), parts.optional_text("registered"))

    def check(self, names: Names) -> None:
        self.found = names.find(self.where, self.module, self.name, self.registered)

    def build(self) -> Any:
        return self.found

    def made_class(self) -> type | None:
        return self.found if isinstance(self.found, type) else None


@dataclasses.dataclass(eq=False)
class Enum(Node):
    """A member of an enumeration."""

    type: Name
    name: str

    kind = "enum"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, _node(parts, "type", Name), parts.text("name"))

    def check(self, names: Names) -> None:
        self.type.check(names)
        found = self.type.found
        if not (isinstance(found, enum.EnumType) and self.name in found.__members__):
            raise StructureError(
                f"{self.where}: the file names the member '{self.name}' of {found!r}, which has none of that name."
            )

    def build(self) -> Any:
        return self.type.found[self.name]


class Partial(Items):
    """A function, its arguments and its keyword arguments, as `functools.partial` has them."""

    kind = "partial"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        items = _nodes(parts, "items")
        types = [type(item) for item in items]
        if len(types) != 3 or not isinstance(items[0], Name | Partial | Method) or types[1:] != [Tuple, Dict]:
            raise StructureError(f"{parts.where}: the file is damaged: a partial is a function, a tuple and a dict.")
        check_words(items[2], parts.where)
        return cls(parts.where, items)

    def build(self) -> Any:
        fn, args, words = super().build()
        return functools.partial(fn, *args, **words)


@dataclasses.dataclass(eq=False)
class Dtype(Node):
    """A dtype."""

    dtype: np.dtype[Any]

    kind = "dtype"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, dtype_of(parts.packed.get("name"), parts.where))

    def check(self, names: Names) -> None:
        pass

    def build(self) -> Any:
        return self.dtype


@dataclasses.dataclass(eq=False)
class Array(Node):
    """An array without its values, which are weights; random keys of an implementation."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    impl: str | None

    kind = "array"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        shape = shape_of(parts.get("shape", list, tuple), parts.where)
        dtype, impl = dtype_of(parts.packed.get("dtype"), parts.where), parts.optional_text("impl")
        if impl is not None and (dtype.name != "uint32" or shape[-1:] != (KEY_WORDS.get(impl),)):
            raise StructureError(f"{parts.where}: the file is damaged: {shape} of {dtype} are no keys of '{impl:.80}'.")
        return cls(parts.where, shape, dtype, impl)

    def check(self, names: Names) -> None:
        names.take(bytes_of(self.shape, self.dtype), self.where)

    def build(self) -> Any:
        array = placeholder(self.shape, self.dtype)
        return array if self.impl is None else jax.random.wrap_key_data(jax.numpy.asarray(array), impl=self.impl)


@dataclasses.dataclass(eq=False)
class Module(Node):
    """A module of a library: its class, and the fields that its adapter makes it of."""

    library: str
    type: Name
    fields: dict[str, Node]
    adapter: adapters.Adapter | None = None

    kind = "module"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        packed = parts.get("fields", dict)
        check_keys(packed, f"{parts.where}, 'fields'")
        fields = {name: parse(field, f"{parts.where}.{name:.80}", parts.depth + 1) for name, field in packed.items()}
        return cls(parts.where, parts.text("library"), _node(parts, "type", Name), fields)

    def check(self, names: Names) -> None:
        self.type.check(names)
        self.adapter = adapter_of(self.library, self.where)
        if not isinstance(self.type.found, type) or not self._is_a_module(self.type.found):
            raise StructureError(
                f"{self.where}: the file names {self.type.found!r} as a module of {self.library}, which it is not."
            )
        for field in self.fields.values():
            field.check(names)

    def _is_a_module(self, cls: type) -> bool:
        assert self.adapter is not None
        # An adapter of somebody else may know instances alone; classes of its library are its own to make.
        is_ours = self.library.partition(".")[0] in ("builtins", *LIBRARIES)
        return self.adapter.handles(cls) or (not is_ours and adapters.belongs(cls, self.library))

    def build(self) -> Any:
        assert self.adapter is not None
        fields = {name: field.build() for name, field in self.fields.items()}
        try:
            return self.adapter.reconstruct(self.type.found, fields)
        except (TypeError, AttributeError) as error:
            raise StructureError(
                f"{self.where}: {self.type.found.__name__} cannot be made of the fields in the file ({', '.join(fields)}): "
                f"{error}. The class is another one than when the file was written, or the file is damaged."
            ) from error

    def made_class(self) -> type | None:
        return self.type.made_class()


@dataclasses.dataclass(eq=False)
class Method(Node):
    """A method of an object that a config can hold."""

    of: Node
    name: str

    kind = "method"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, _node(parts, "of", Module, Keras), parts.text("name"))

    def check(self, names: Names) -> None:
        self.of.check(names)
        check_method(self.of.made_class(), self.name, self.where, users=names.is_safe)

    def build(self) -> Any:
        return getattr(self.of.build(), self.name)


@dataclasses.dataclass(eq=False)
class Keras(Node):
    """An object as Keras writes it.

    Attributes:
        config: what Keras wrote.
        is_built: whether the value is the object; else it is the config, which Keras makes the object of itself.
    """

    config: Any
    is_built: bool = True

    kind = "keras"

    @classmethod
    def parse(cls, parts: Parts) -> Node:
        return cls(parts.where, parts.get("config", dict))

    def check(self, names: Names) -> None:
        keras_form.check(self.config, self.where, names)

    def build(self) -> Any:
        return keras_form.made(self.config, self.where) if self.is_built else self.config

    def made_class(self) -> type | None:
        return (
            keras_form.class_of(self.config) if isinstance(self.config, dict) and "class_name" in self.config else None
        )


def _all_kinds(base: type[Node]) -> dict[str, type[Node]]:
    found = {base.kind: base} if base.kind else {}
    for cls in base.__subclasses__():
        found |= _all_kinds(cls)
    return found


_KINDS = _all_kinds(Node)


def parse(packed: Any, where: str, depth: int = 0) -> Node:
    """Returns the value that a part of a config describes.

    Raises:
        StructureError: it describes none.
    """
    check_depth(depth, where)
    if isinstance(packed, list):
        return List(where, [parse(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(packed)])
    if not isinstance(packed, dict):
        return Plain(where, packed)
    if KIND not in packed:  # a config that Keras wrote, such as those of keras.layers.FlaxLayer
        return _of_keras(packed, where)
    kind = of_type(packed[KIND], (str,), f"{where}, '{KIND}'")
    if kind not in _KINDS:
        raise StructureError(
            f"{where}: the file holds a value of the kind {kind!r:.80}, which this version of jaxbridge does not know. It was "
            "written by a newer one (`pip install -U jaxbridge`), or is damaged."
        )
    return _KINDS[kind].parse(Parts(packed, where, depth))


def _of_keras(packed: dict[str, Any], where: str) -> Node:
    """Returns an object or a function that Keras wrote. Keras itself would take any function `relu` for its own."""
    name = packed.get("config")
    if not isinstance(name, str):
        return Keras(where, packed)
    parts = Parts(packed, where, 0)
    # Keras writes the module of the function's type: "builtins", or where JAX has that of what `jax.jit` returns.
    module = parts.optional_text("module") if parts.text("class_name") == "function" else None
    module = "" if module in (None, "builtins") else module
    return Name(where, module, name, parts.optional_text("registered_name"))


def _nodes(parts: Parts, name: str) -> list[Node]:
    packed = parts.get(name, list)
    return [parse(item, f"{parts.where}[{index}]", parts.depth + 1) for index, item in enumerate(packed)]


def _node(parts: Parts, name: str, *types: type[Node]) -> Any:
    found = parse(parts.get(name, dict), parts.where, parts.depth + 1)
    if not isinstance(found, types):
        raise StructureError(f"{parts.where}: the file is damaged: '{name}' cannot be {parts.packed[name]!r:.80}.")
    return found


def check_words(node: Node, where: str) -> None:
    """Raises a StructureError if a dict of keyword arguments has a key that is no name."""
    for key in node.keys() if isinstance(node, Dict) else ():
        if not (isinstance(key, str) and key.isidentifier()):
            raise StructureError(f"{where}: the file is damaged: {key!r:.80} is not the name of an argument.")
