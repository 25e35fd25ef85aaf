"""Which dimensions of a model's parameters are split, and why."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from jaxbridge.core.dimensions import DimensionClass, Dimensions


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided for a parameter.

    Attributes:
        dim: the dimension to split; None to replicate it.
        reason: why, for people.
    """

    dim: int | None
    reason: str


def decide(dims: Dimensions, sizes: Sequence[int], count: int, min_bytes: int) -> list[Decision]:
    """Decides for every parameter.

    Classes of dimensions are taken in the order of what splitting them costs: bytes that devices exchange per byte of
    parameters that each of them no longer holds. A parameter goes with the first class that has it.

    Args:
        dims: what the program does with its dimensions.
        sizes: the bytes of each parameter.
        count: the devices to split over.
        min_bytes: a parameter of fewer bytes is no reason to split a class.
    """
    if count == 1:
        return [Decision(None, "there is one device")] * len(sizes)
    return _Decisions(dims, sizes, count, min_bytes).all()


class _Decisions:
    def __init__(self, dims: Dimensions, sizes: Sequence[int], count: int, min_bytes: int):
        self._dims, self._sizes, self._count, self._min_bytes = dims, sizes, count, min_bytes
        self._classes = dims.classes()
        #: Parameter -> the classes of its dimensions, each with their positions.
        self._of_param: dict[int, dict[int, list[int]]] = collections.defaultdict(dict)
        for number, each in enumerate(self._classes):
            for param, position in each.params:
                self._of_param[param].setdefault(number, []).append(position)
        self._made: dict[int, Decision] = {}

    def all(self) -> list[Decision]:
        candidates = {n for n, each in enumerate(self._classes) if self._obstacle(each) is None}
        while (best := self._best(candidates)) is not None:
            candidates.remove(best)
            for param, position in self._members(best):
                self._made[param] = Decision(position, self._why_split(best, param, position))
        return [self._made.get(p) or Decision(None, self._why_not(p)) for p in range(len(self._sizes))]

    def _best(self, candidates: set[int]) -> int | None:
        """Returns the class that costs least, of those that are worth it after what was decided so far."""
        costs = {}
        for number in candidates:
            members = [param for param, _ in self._members(number)]
            large = [param for param in members if self._sizes[param] >= self._min_bytes]
            # The plain way to split a parameter: gather what it reads and writes, forward and backward.
            plain = 2 * sum(self._dims.traffic[param] for param in large)
            if large and self._classes[number].moved <= plain:
                saved = sum(self._sizes[param] for param in members)
                costs[number] = self._classes[number].moved / saved, -saved
        return min(costs, key=costs.__getitem__, default=None)

    def _members(self, number: int) -> list[tuple[int, int]]:
        """Returns what the class would split: a parameter that is in it twice cannot be split along both dimensions."""
        return [
            (param, position)
            for param, position in self._classes[number].params
            if param not in self._made and len(self._of_param[param][number]) == 1
        ]

    def _obstacle(self, each: DimensionClass) -> str | None:
        """Returns why a class cannot be split; None where it can."""
        return each.blocked or self._uneven(each)

    def _uneven(self, each: DimensionClass) -> str | None:
        odd = sorted(size for size in each.sizes if size % self._count)
        return f"{odd[0]} {'heads ' if each.is_heads else ''}cannot be divided by {self._count}" if odd else None

    def _why_split(self, number: int, param: int, position: int) -> str:
        roles = self._dims.roles(param, position)
        kind = (
            "vocabulary-parallel: rows are looked up along it"
            if "looked up" in roles
            else "row-parallel: it is summed over"
            if "summed" in roles
            else "column-parallel: the results are split along it"
            if "kept" in roles
            else "follows what it is combined with"
        )
        notes = ["attention heads"] if self._classes[number].is_heads else []
        # What else a reader may have expected, and why it is not.
        notes += filter(None, (self._uneven(self._classes[other]) for other in self._of_param[param]))
        return f"{kind} ({', '.join(notes)})" if notes else kind

    def _why_not(self, param: int) -> str:
        if self._sizes[param] < self._min_bytes:
            return f"small: {self._sizes[param]} bytes"
        reasons = []
        for number, positions in self._of_param[param].items():
            each = self._classes[number]
            largest = max(each.exchanges, key=lambda exchange: exchange.bytes, default=None)
            if len(positions) > 1:
                reasons.append(f"dimensions {', '.join(map(str, positions))} are one and the same to the model")
                continue
            obstacle = self._obstacle(each) or (
                f"splitting it would cost more than it is worth ({largest.cause})" if largest else "it is not used"
            )
            reasons.append(f"dimension {positions[0]}: {obstacle}")
        return "; ".join(reasons) or "a scalar"
