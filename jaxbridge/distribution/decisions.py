"""Which classes of dimensions are split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxbridge.core.dimensions import DimensionClass, Dimensions

#: A parameter and one of its dimensions.
Place = tuple[int, int]


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
    classes = dims.classes()
    decisions: dict[int, Decision] = {}
    candidates = [each for each in classes if _obstacle(each, count) is None]
    while True:
        offers = [_Offer(each, dims, sizes, min_bytes, decisions) for each in candidates]
        offers = [offer for offer in offers if offer.is_worth_it]
        if not offers:
            break
        best = min(offers, key=lambda offer: (offer.moved / offer.saved, -offer.saved))
        for param, position in best.members:
            decisions[param] = Decision(position, _why_split(classes, best.of, dims, count, (param, position)))
        candidates.remove(best.of)
    for param, size in enumerate(sizes):
        if param not in decisions:
            decisions[param] = Decision(None, _why_not(classes, dims, sizes, count, min_bytes, param, size))
    return [decisions[param] for param in range(len(sizes))]


class _Offer:
    """A class as it stands after what was decided so far."""

    def __init__(
        self,
        of: DimensionClass,
        dims: Dimensions,
        sizes: Sequence[int],
        min_bytes: int,
        decided: dict[int, Decision],
    ):
        self.of = of
        own = [param for param, _ in of.params]
        # A parameter both of whose dimensions are in the class cannot be split along both.
        self.members = [(p, position) for p, position in of.params if p not in decided and own.count(p) == 1]
        large = [param for param, _ in self.members if sizes[param] >= min_bytes]
        self.saved = sum(sizes[param] for param, _ in self.members)
        self.moved = sum(exchange.bytes for exchange in of.exchanges)
        # The plain way to split a parameter: gather what it reads and writes, forward and backward.
        self.plain = 2 * sum(dims.traffic[param] for param in large)
        self.is_worth_it = bool(large) and self.moved <= self.plain


def _obstacle(each: DimensionClass, count: int) -> str | None:
    """Returns why a class cannot be split; None where it can."""
    if each.blocked is not None:
        return each.blocked
    odd = sorted(size for size in each.sizes if size % count)
    return f"{odd[0]} {'heads ' if each.is_heads else ''}cannot be divided by {count}" if odd else None


def _why_split(classes: Sequence[DimensionClass], each: DimensionClass, dims: Dimensions, count: int, place: Place) -> str:
    roles = dims.roles(*place)
    kind = (
        "vocabulary-parallel: rows are looked up along it"
        if "looked up" in roles
        else "row-parallel: it is summed over"
        if "summed" in roles
        else "column-parallel: the results are split along it"
        if "kept" in roles
        else "follows what it is combined with"
    )
    notes = ["attention heads"] if each.is_heads else []
    # What else a reader may have expected, and why it is not.
    for other in classes:
        if other.blocked is None and any(param == place[0] for param, _ in other.params):
            notes += filter(None, [_obstacle(other, count)])
    return f"{kind} ({', '.join(notes)})" if notes else kind


def _why_not(
    classes: Sequence[DimensionClass],
    dims: Dimensions,
    sizes: Sequence[int],
    count: int,
    min_bytes: int,
    param: int,
    size: int,
) -> str:
    if size < min_bytes:
        return f"small: {size} bytes"
    reasons: list[str] = []
    for each in classes:
        positions = [position for owner, position in each.params if owner == param]
        if len(positions) > 1:
            reasons.append(f"dimensions {', '.join(map(str, positions))} are one and the same to the model")
        elif positions:
            obstacle = _obstacle(each, count)
            if obstacle is None:
                offer = _Offer(each, dims, sizes, min_bytes, {})
                cause = max(each.exchanges, key=lambda exchange: exchange.bytes).cause if each.exchanges else "not used"
                obstacle = f"splitting it would move {offer.moved} bytes a step, more than it is worth ({cause})"
            reasons.append(f"dimension {positions[0]}: {obstacle}")
    return "; ".join(reasons) or "a scalar"
