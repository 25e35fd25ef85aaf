"""Shapes of the inputs of a call: which sizes are fixed, which are symbols, and whether given sizes agree with them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export

from jaxbridge.core import dims
from jaxbridge.errors import ShapeError

#: A size as Keras knows it: None is unknown.
Size = int | None

#: Sizes that stand for unknown ones where concrete values are needed, in the order in which they are tried. Not 1 first:
#: a parameter whose shape follows an unknown size would broadcast later, silently, instead of failing.
TRIAL_SIZES = (2, 4, 8, 16, 32, 64, 128, 224, 256, 1)


@dataclasses.dataclass(frozen=True)
class Signature:
    """Shapes and dtypes of a flat list of arrays; sizes may be symbols.

    Attributes:
        shapes: a shape per array, as text: "(batch, t, 3)".
        dtypes: the dtype per array, by name.
        constraints: such as ("t >= 2",).
        declared: the symbols that the user named; the others were named here and may be named differently.
        leading: how many of the first arrays are no inputs (a layer's variables); messages count from behind them.
    """

    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    declared: frozenset[str] = frozenset()
    leading: int = 0

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """Returns one `ShapeDtypeStruct` per array, all symbols in one new scope."""
        scope = jax.export.SymbolicScope(self.constraints)
        return [
            jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), dtype)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def keras_shapes(self) -> list[tuple[Size, ...]]:
        """Returns the shapes with None for every size that is no number."""
        return [tuple(int(d) if d.isdigit() else None for d in dims.split_shape(shape)) for shape in self.shapes]

    def symbols(self) -> list[str]:
        """Returns all symbols, in order of appearance."""
        return list(dict.fromkeys(name for shape in self.shapes for name in dims.symbols_in(shape)))

    def with_one_symbol(self) -> Signature | None:
        """Returns the signature in which the undeclared symbols are one, at least 2; None where that changes nothing."""
        free = [name for name in self.symbols() if name not in self.declared]
        if len(free) < 2:
            return None
        merged = _fresh(set(self.declared), "size")
        renamed = tuple(
            dims.join_shape([merged if size in free else size for size in dims.split_shape(shape)])
            for shape in self.shapes
        )
        return dataclasses.replace(self, shapes=renamed, constraints=(*self.constraints, f"{merged} >= 2"))

    def at(self, size: int) -> Signature | None:
        """Returns the signature with every symbol equal to `size`; None where that breaks a constraint."""
        return self.evaluated(dict.fromkeys(self.symbols(), size))

    def at_known_sizes(self, shapes: Sequence[Sequence[Size]]) -> Signature:
        """Returns the signature of arrays of these shapes: sizes that are known in the place of their symbols."""
        texts = [dims.split_shape(shape) for shape in self.shapes]
        known = [
            [(text, size) for text, size in zip(*pair, strict=True) if size is not None]
            for pair in zip(texts, shapes, strict=True)
        ]
        values = dims.solve([[text for text, _ in row] for row in known], [[size for _, size in row] for row in known])
        put = {name: str(value) for name, value in values.items()}
        rows = [
            [dims.substituted(text, put) if size is None else str(size) for text, size in zip(*pair, strict=True)]
            for pair in zip(texts, shapes, strict=True)
        ]
        constraints = tuple(dims.substituted(c, put) for c in self.constraints if set(dims.symbols_in(c)) - put.keys())
        return dataclasses.replace(self, shapes=tuple(map(dims.join_shape, rows)), constraints=constraints)

    def with_sizes(self, sizes: Mapping[str, str]) -> Signature:
        """Returns the signature with these sizes, such as "2*t", in the place of symbols."""
        return dataclasses.replace(
            self,
            shapes=tuple(dims.substituted(shape, sizes) for shape in self.shapes),
            constraints=tuple(dims.substituted(constraint, sizes) for constraint in self.constraints),
        )

    def followed_by(self, mask: ArraySpec, index: int) -> Signature:
        """Returns the signature with one more array, whose sizes are the leading ones of array `index`, as a mask's are."""
        like = dims.split_shape(self.shapes[index])[: len(mask.shape)]
        fits = len(like) == len(mask.shape) and all(
            size is None or not name.isdigit() or size == int(name) for name, size in zip(like, mask.shape, strict=True)
        )
        names = like if fits else ["mask" if size is None else str(size) for size in mask.shape]
        return dataclasses.replace(
            self, shapes=(*self.shapes, dims.join_shape(names)), dtypes=(*self.dtypes, mask.dtype)
        )

    def trials(self) -> Iterator[Signature]:
        """Yields the signature at concrete sizes, where the constraints allow them."""
        if not self.symbols():
            yield self
            return
        for size in TRIAL_SIZES:
            concrete = self.at(size)
            if concrete is not None:
                yield concrete

    def evaluated(self, env: dict[str, int]) -> Signature | None:
        """Returns the signature with these values for its symbols; None where they break a constraint."""
        if not all(dims.holds(constraint, env) for constraint in self.constraints):
            return None
        shapes = [[str(dims.evaluate(d, env)) for d in dims.split_shape(shape)] for shape in self.shapes]
        return dataclasses.replace(self, shapes=tuple(map(dims.join_shape, shapes)), constraints=())

    def conditions(self, sizes: Sequence[Sequence[Any]]) -> list[tuple[Any, str]]:
        """Returns what must hold for arrays with these sizes: pairs of a condition and the sentence if it does not.

        Args:
            sizes: the sizes of each array: integers, or scalar tensors where a graph does not know them.

        Returns:
            Conditions that are bools where they can be decided from integers and scalar boolean tensors elsewhere.

        Raises:
            ShapeError: an array has another rank than its shape.
        """
        texts = [dims.split_shape(shape) for shape in self.shapes]
        for index, (text, row) in enumerate(zip(texts, sizes, strict=True)):
            if len(text) != len(row):
                raise ShapeError(
                    f"Input {index - self.leading} has rank {len(row)} and its shape is declared as {self.shapes[index]}, "
                    f"of rank {len(text)}."
                )
        env = dims.solve(texts, sizes)
        found = []
        for index, (text, row) in enumerate(zip(texts, sizes, strict=True)):
            for axis, (wanted, size) in enumerate(zip(text, row, strict=True)):
                if wanted in env and env[wanted] is size:
                    continue
                value = dims.evaluate(wanted, env)
                found.append((size == value, self._mismatch(index, axis, wanted, size, value)))
        for constraint in self.constraints:
            values = ", ".join(
                f"{name} = {env[name]}" for name in dims.symbols_in(constraint) if isinstance(env.get(name), int)
            )
            found.append(
                (
                    dims.holds(constraint, env),
                    f"The constraint '{constraint}' does not hold{f' for {values}' if values else ''}.",
                )
            )
        return found

    def _mismatch(self, index: int, axis: int, wanted: str, size: Any, value: Any) -> str:
        have = f"has size {size}" if isinstance(size, int) else "has another size"
        needed = f"'{wanted}' ({value})" if isinstance(value, int) and not wanted.isdigit() else f"'{wanted}'"
        where = f"Axis {axis} of input {index - self.leading}"
        return f"{where} {have}, where the declared shape {self.shapes[index]} needs {needed}."

    def check(self, sizes: Sequence[Sequence[Any]]) -> None:
        """Raises a ShapeError if arrays with these sizes do not agree with the signature."""
        for condition, message in self.conditions(sizes):
            if not condition:
                raise ShapeError(message)

    def agrees(self, sizes: Sequence[Sequence[Size]]) -> bool:
        """Returns whether arrays with these sizes agree with the signature, as far as the sizes are known."""
        if len(sizes) != len(self.shapes):
            return False
        known: dict[str, int] = {}
        for shape, row in zip(self.shapes, sizes, strict=True):
            text = dims.split_shape(shape)
            if len(text) != len(row):
                return False
            for wanted, size in zip(text, row, strict=True):
                if wanted.isdigit():
                    # A size that the caller does not know may not be taken for a fixed one.
                    if size is None or size != int(wanted):
                        return False
                elif size is None or not wanted.isidentifier() or wanted in self.declared:
                    continue
                elif known.setdefault(wanted, size) != size:
                    return False
        return True


@functools.lru_cache(maxsize=1024)
def make_signature(
    shapes: tuple[tuple[Size, ...], ...],
    dtypes: tuple[str, ...],
    *,
    declared: tuple[str | None, ...] | None = None,
    constraints: tuple[str, ...] = (),
    symbolic_batch: bool = False,
) -> Signature:
    """Names the unknown sizes of some arrays.

    Args:
        shapes: a shape per array; None is an unknown size.
        dtypes: the dtype per array.
        declared: a shape text per array as the user wrote it, such as "(b, t, 3)", or None. `_` and a closing `...`
            stand for what `shapes` says.
        constraints: constraints between the declared symbols.
        symbolic_batch: whether axis 0 becomes a symbol although its size is known (a value that was seen, not promised).

    Returns:
        The signature. Axis 0 of several arrays is one symbol where their sizes are equal or both unknown; every other
        unknown size is a symbol of its own.

    Raises:
        ShapeError: a declared text cannot be read, or disagrees with a shape.
    """
    texts = [None if text is None else dims.split_shape(text) for text in (declared or [None] * len(shapes))]
    names = {name for text in texts if text for size in text for name in dims.symbols_in(size)}
    names.update(name for constraint in constraints for name in dims.symbols_in(constraint))
    namer = _Namer(names)
    for shape, text in zip(shapes, texts, strict=True):
        if shape and text and text[0].isidentifier() and text[0] != "_":
            namer.batches.setdefault(shape[0], text[0])
    sizes_of_axis_0 = {shape[0] for shape in shapes if shape}
    named = []
    for shape, text in zip(shapes, texts, strict=True):
        known = [
            namer.batch(size) if axis == 0 and _is_batch(size, sizes_of_axis_0, symbolic_batch) else namer.size(size)
            for axis, size in enumerate(shape)
        ]
        named.append(dims.join_shape(known if text is None else _declared(text, known, shape)))
    signature = Signature(tuple(named), dtypes, constraints, frozenset(names))
    try:
        signature.structs()
    except ShapeError:
        raise
    except Exception as error:  # jax.export has no public class for a text that it cannot read
        raise ShapeError(f"`polymorphic_shapes` or `polymorphic_constraints` cannot be used: {error}") from error
    return signature


def _is_batch(size: Size, sizes: set[Size], symbolic_batch: bool) -> bool:
    if size is None:
        return True
    # An axis of size 1 beside others is there to be broadcast.
    return symbolic_batch and not (size == 1 and len(sizes) > 1)


def _declared(text: list[str], known: list[str], shape: tuple[Size, ...]) -> list[str]:
    """Returns the declared sizes, with the placeholders filled in and the numbers compared."""
    sizes = list(text)
    if sizes and sizes[-1] == "...":
        sizes = sizes[:-1] + known[len(sizes) - 1 :]
    if len(sizes) != len(shape):
        raise ShapeError(
            f"`polymorphic_shapes` says {dims.join_shape(text)}, of rank {len(sizes)}, for an input of shape {shape}, "
            f"of rank {len(shape)}."
        )
    for axis, (wanted, have) in enumerate(zip(sizes, shape, strict=True)):
        if wanted.isdigit() and have is not None and have != int(wanted):
            raise ShapeError(
                f"`polymorphic_shapes` says {dims.join_shape(text)} and axis {axis} of the input has size {have}, not {wanted}."
            )
    return [name if wanted == "_" else wanted for wanted, name in zip(sizes, known, strict=True)]


def _fresh(taken: set[str], name: str) -> str:
    while name in taken:
        name += "_"
    return name


class _Namer:
    """Hands out names that the user has not taken."""

    def __init__(self, taken: set[str]):
        self.taken = set(taken)
        self.batches: dict[Size, str] = {}
        self.count = 0

    def batch(self, size: Size) -> str:
        if size not in self.batches:
            name = "batch" if not self.batches else f"batch_{len(self.batches)}"
            self.batches[size] = _fresh(self.taken, name)
            self.taken.add(self.batches[size])
        return self.batches[size]

    def size(self, size: Size) -> str:
        if size is not None:
            return str(size)
        self.count += 1
        name = _fresh(self.taken, f"size_{self.count}")
        self.taken.add(name)
        return name


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape (None where unknown) and dtype name of an array."""

    shape: tuple[Size, ...]
    dtype: str

    def accepts(self, other: ArraySpec) -> bool:
        """Returns whether an array of `other`'s shape may be one of this shape, as far as sizes are known."""
        return len(self.shape) == len(other.shape) and all(
            a is None or b is None or a == b for a, b in zip(self.shape, other.shape, strict=True)
        )
