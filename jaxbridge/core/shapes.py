"""Shapes of the inputs of a call: which sizes are fixed, which are symbols, and whether given sizes agree with them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
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

#: How many combinations of them are tried where constraints forbid that all are equal.
_COMBINATIONS = 1000


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

    @functools.cached_property
    def normal_sizes(self) -> list[list[str]]:
        """The sizes of each shape as `jax.export` understands them: terms are collected, equalities are applied."""
        return [[str(size) for size in struct.shape] for struct in self.structs()]

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

    def with_constraints(self, *constraints: str) -> Signature:
        """Returns the signature with these constraints too."""
        return dataclasses.replace(self, constraints=(*self.constraints, *constraints))

    def with_sizes(self, sizes: Mapping[str, str]) -> Signature:
        """Returns the signature with these sizes, such as "2*t", in the place of symbols."""
        return dataclasses.replace(
            self,
            shapes=tuple(dims.substituted(shape, sizes) for shape in self.shapes),
            constraints=tuple(dims.substituted(constraint, sizes) for constraint in self.constraints),
        )

    def batches(self) -> set[str]:
        """Returns the sizes of axis 0."""
        return {row[0] for row in map(dims.split_shape, self.shapes) if row}

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
        found = list(filter(None, map(self.at, TRIAL_SIZES)))
        if not found:  # a constraint such as "t >= 2*b", which does not hold where all are equal
            names = self.symbols()
            tried = itertools.islice(itertools.product(sorted(TRIAL_SIZES), repeat=len(names)), _COMBINATIONS)
            found = filter(None, (self.evaluated(dict(zip(names, values, strict=True))) for values in tried))
        yield from found

    def evaluated(self, env: dict[str, int]) -> Signature | None:
        """Returns the signature with these values for its symbols; None where they break a constraint."""
        sizes = [[dims.evaluate(d, env) for d in row] for row in self.normal_sizes]
        if any(size < 0 for row in sizes for size in row) or not self._hold(sizes):
            return None
        shapes = tuple(dims.join_shape(list(map(str, row))) for row in sizes)
        return dataclasses.replace(self, shapes=shapes, constraints=())

    def _hold(self, sizes: Sequence[Sequence[int]]) -> bool:
        return all(condition for condition, _ in self.conditions(sizes))

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
        env = self._values(sizes)
        alone = {text for row in self.normal_sizes for text in row}
        found = [
            (env[name] >= 0, f"The symbol '{name}' of {', '.join(self.shapes)} would be negative.")
            for name in env
            if name not in alone
        ]
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

    def _values(self, sizes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Returns the values of all symbols, for arrays of these sizes."""
        # As they are written first, so that a broken equality is said of the symbols that the user wrote.
        env = {
            **dims.solve(self.normal_sizes, sizes),
            **dims.solve([dims.split_shape(shape) for shape in self.shapes], sizes),
        }
        # An equality takes its left side out of the shapes, as in `jax.export`: 'a == 2*b' makes every a 2*b.
        equal = {
            left: right
            for left, comparison, right in map(dims.split_constraint, self.constraints)
            if comparison == "==" and left.isidentifier() and left not in env
        }
        while known := [left for left, right in equal.items() if set(dims.symbols_in(right)) <= env.keys()]:
            env.update({left: dims.evaluate(equal.pop(left), env) for left in known})
        for name in self.symbols():
            if name not in env:
                raise dims.unsolved(name)
        return env

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
    namer = _Namer(names, {name for constraint in constraints for name in dims.symbols_in(constraint)})
    for shape, text in zip(shapes, texts, strict=True):
        if shape and text and text[0].isidentifier() and text[0] != "_":
            namer.batches.setdefault(shape[0], text[0])
    sizes_of_axis_0 = {shape[0] for shape in shapes if shape}
    named = []
    for index, (shape, text) in enumerate(zip(shapes, texts, strict=True)):
        known = [
            namer.batch(size, _is_batch(size, sizes_of_axis_0, symbolic_batch))
            if axis == 0
            else namer.size(size, axis, index)
            for axis, size in enumerate(shape)
        ]
        named.append(dims.join_shape(known if text is None else _declared(text, known, shape)))
    signature = Signature(tuple(named), dtypes, constraints, frozenset(names | namer.asked))
    try:
        symbols = {name for row in signature.normal_sizes for size in row for name in dims.symbols_in(size)}
    except ShapeError:
        raise
    except Exception as error:  # jax.export has no public class for a text that it cannot read
        raise ShapeError(f"`polymorphic_shapes` or `polymorphic_constraints` cannot be used: {error}") from error
    _check_constraints(signature, symbols)
    return signature


def _check_constraints(signature: Signature, symbols: set[str]) -> None:
    """Raises a ShapeError for a constraint between symbols that no shape has."""
    equal = {dims.split_constraint(text)[0] for text in signature.constraints if "==" in text}
    for constraint in signature.constraints:
        unknown = [name for name in dims.symbols_in(constraint) if name not in symbols | equal]
        if unknown:
            raise ShapeError(
                f"The constraint '{constraint}' of `polymorphic_constraints` names '{unknown[0]}', and the inputs have the "
                f"shapes {', '.join(signature.shapes)}. Use a name in it that they have, or that `polymorphic_shapes` gives "
                "them."
            )


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
    """Hands out names that the user has not taken: "batch", "size_1" for axis 1, "size_1_2" for axis 1 of input 2.

    A name that a constraint asks for makes a symbol of a known size too, as a declared shape does.
    """

    def __init__(self, taken: set[str], asked: set[str]):
        self.taken = set(taken)
        self.asked = asked - taken
        self.batches: dict[Size, str] = {}

    def batch(self, size: Size, is_symbol: bool) -> str:
        name = self.batches.get(size)
        if name is None:
            name = _fresh(self.taken, f"batch_{len(self.batches)}" if self.batches else "batch")
        if not is_symbol and name not in self.asked:
            return str(size)
        self.batches[size] = name
        self.taken.add(name)
        return name

    def size(self, size: Size, axis: int, index: int) -> str:
        name = _fresh(self.taken, f"size_{axis}_{index}" if index else f"size_{axis}")
        if size is not None and name not in self.asked:
            return str(size)
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
