"""Which dimensions of a program are one and the same, and what it would cost to split them over devices.

A matrix product keeps a dimension of its operands or sums over it, a transpose moves it, an addition makes those of its
operands one. Followed through a jaxpr this puts every dimension of every parameter into a class with those that have to be
split when it is: the columns of one kernel with a bias and the rows of the next kernel, the heads of an attention, the
rows of an embedding. With each class stand the bytes that devices must exchange if it is split. Neither names nor sizes
have a part in it.

This is the dimension analysis of automatic partitioners (P. Alabed et al., "TOAST: Fast and scalable auto-partitioning
based on principled static analysis", 2025), for one mesh axis; what is done with it is that of M. Shoeybi et al.,
"Megatron-LM", 2019.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

#: What an exchange costs beside its bytes, in bytes: the time until the first one arrives (some 10 us at 10 GB/s).
LATENCY_BYTES = 2**16

#: What a parameter's dimension is to an operation that reads it.
Role = Literal["kept", "summed", "looked up"]


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value of the program.

    Attributes:
        dims: a number per dimension; equal numbers are the same dimension.
        params: the parameters that it is made of alone (reshaped, cast, added up); empty once an input takes part.
        from_inputs: whether it depends on the inputs of the model.
        trained: whether it depends on a parameter, so that a gradient flows back into it.
    """

    dims: tuple[int, ...]
    params: frozenset[int] = frozenset()
    from_inputs: bool = False
    trained: bool = False


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What devices exchange where a dimension is split.

    Attributes:
        bytes: how much, per step forward and backward, and what it costs beside.
        cause: the operation, and what it does with the dimension.
    """

    bytes: int
    cause: str


@dataclasses.dataclass
class DimensionClass:
    """Dimensions that are split together or not at all.

    Attributes:
        params: (parameter, dimension) of each of its members.
        sizes: the sizes that must be divisible by the number of devices.
        exchanges: what splitting it makes devices exchange.
        blocked: why it cannot be split; None where it can.
        is_heads: whether an attention multiplies for each of its indices apart.
    """

    params: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    sizes: set[int] = dataclasses.field(default_factory=set)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    blocked: str | None = None
    is_heads: bool = False

    @functools.cached_property
    def moved(self) -> int:
        """The bytes that splitting it makes devices exchange."""
        return sum(exchange.bytes for exchange in self.exchanges)


class Dimensions:
    """Collects what a program does with its dimensions."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._sizes: list[set[int]] = []
        self._exchanges: list[tuple[int, Exchange]] = []
        self._blocked: dict[int, str] = {}
        self._heads: set[int] = set()
        #: Parameter -> what operations do with it, each with the number of a dimension.
        self._roles: dict[int, set[tuple[int, Role]]] = collections.defaultdict(set)
        self._params: dict[int, tuple[int, ...]] = {}
        #: Parameter -> what gathering would cost that the operations that read it take in and give out.
        self.traffic: collections.Counter[int] = collections.Counter()
        #: How often the equations that are being looked at run.
        self.times = 1

    # Dimensions.

    def new(self, size: int) -> int:
        """Returns the number of a new dimension."""
        self._parents.append(len(self._parents))
        self._sizes.append({size})
        return len(self._parents) - 1

    def fresh(self, aval: Any, **known: Any) -> Value:
        """Returns a value whose dimensions have to do with no others."""
        return Value(tuple(self.new(size) for size in aval.shape), **known)

    def param(self, index: int, aval: Any) -> Value:
        """Returns the value of a parameter."""
        value = self.fresh(aval, params=frozenset([index]), trained=True)
        self._params[index] = value.dims
        return value

    def find(self, dim: int) -> int:
        """Returns the number that stands for a dimension's class."""
        while self._parents[dim] != dim:
            self._parents[dim] = self._parents[self._parents[dim]]
            dim = self._parents[dim]
        return dim

    def join(self, first: int, second: int) -> int:
        """Makes two dimensions one, and returns its number."""
        self._parents[self.find(second)] = self.find(first)
        return first

    def must_divide(self, dim: int, size: int) -> None:
        """Notes a size that a dimension can only be split by: a reshape cuts it up at these places."""
        self._sizes[dim].add(size)

    # What is done with them.

    def exchange(self, dim: int, nbytes: int, cause: str) -> None:
        """Notes what devices exchange if a dimension is split."""
        self._exchanges.append((dim, Exchange((nbytes + LATENCY_BYTES) * self.times, cause)))

    def block(self, dims: Iterable[int], cause: str) -> None:
        """Notes that dimensions cannot be split."""
        for dim in dims:
            self._blocked.setdefault(dim, cause)

    def heads(self, dims: Iterable[int]) -> None:
        """Notes dimensions along which two activations are multiplied index by index."""
        self._heads.update(dims)

    def read(self, value: Value, role: Role, dims: Iterable[int], nbytes: int) -> None:
        """Notes what an operation does with some dimensions of a value that is made of parameters."""
        dims = list(dims)
        for param in value.params:
            self.traffic[param] += (nbytes + 2 * LATENCY_BYTES) * self.times if nbytes else 0
            self._roles[param].update((dim, role) for dim in dims)

    def returned(self, value: Value, aval: Any) -> None:
        """Notes that the program returns a value: it is gathered."""
        for dim in value.dims:
            self.exchange(dim, nbytes(aval), "the model returns it")

    # Results.

    def classes(self) -> list[DimensionClass]:
        """Returns the classes that have a parameter's dimension in them."""
        found: dict[int, DimensionClass] = {}
        for param, dims in self._params.items():
            for position, dim in enumerate(dims):
                found.setdefault(self.find(dim), DimensionClass()).params.append((param, position))
        for dim, sizes in enumerate(self._sizes):
            if (root := self.find(dim)) in found:
                found[root].sizes |= sizes
        for dim, exchange in self._exchanges:
            if (root := self.find(dim)) in found:
                found[root].exchanges.append(exchange)
        for dim, cause in self._blocked.items():
            if (root := self.find(dim)) in found and found[root].blocked is None:
                found[root].blocked = cause
        for dim in self._heads:
            if (root := self.find(dim)) in found:
                found[root].is_heads = True
        return list(found.values())

    def roles(self, param: int, position: int) -> set[Role]:
        """Returns what operations do with a parameter's dimension."""
        root = self.find(self._params[param][position])
        return {role for dim, role in self._roles[param] if self.find(dim) == root}


def nbytes(aval: Any) -> int:
    """Returns the bytes of an abstract array; 0 where its dtype has no size (keys)."""
    return int(np.prod(aval.shape)) * getattr(aval.dtype, "itemsize", 0)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Returns which dimensions of a shape become which of another; dimensions of size 1 are left out.

    Example:
        >>> reshape_groups((2, 3, 8), (2, 1, 3, 4, 2))
        [([0], [0]), ([1], [2]), ([2], [3, 4])]
    """
    left = [index for index, size in enumerate(before) if size != 1]
    right = [index for index, size in enumerate(after) if size != 1]
    groups = []
    while left and right:
        taken, made = [left.pop(0)], [right.pop(0)]
        product, wanted = before[taken[0]], after[made[0]]
        while product != wanted:
            if product < wanted:
                taken.append(left.pop(0))
                product *= before[taken[-1]]
            else:
                made.append(right.pop(0))
                wanted *= after[made[-1]]
        groups.append((taken, made))
    return groups
