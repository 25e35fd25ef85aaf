"""Tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Returns rows as lines whose columns stand under each other, two spaces apart.

    Args:
        rows: the cells of each row, as many in each.
        right: the columns that end, rather than start, at the same place.

    Example:
        >>> aligned([("layer", "bytes"), ("d1", "8")], right=[1])
        ['layer  bytes', 'd1         8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    place = lambda column, cell: cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
    return ["  ".join(place(column, cell) for column, cell in enumerate(row)).rstrip() for row in rows]
