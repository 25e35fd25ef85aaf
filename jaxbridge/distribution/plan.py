"""What was planned for a model's variables."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PlannedVariable:
    """The plan for one variable.

    Attributes:
        path: the variable's path.
        shape: its shape.
        spec: the mesh axis (or None) of each dimension.
        bytes: its size.
        bytes_per_device: the size of the part that one device holds.
        reason: why.
    """

    path: str
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]
    bytes: int
    bytes_per_device: int
    reason: str

    @property
    def is_split(self) -> bool:
        """Whether it is split over devices."""
        return any(self.spec)


@dataclasses.dataclass(frozen=True)
class ShardingPlan:
    """The plan for a model; `print` it for a table.

    Attributes:
        axis_name: the mesh axis that variables are split over.
        device_count: the devices along it.
        rows: the variables, in the order of `model.variables`.
    """

    axis_name: str
    device_count: int
    rows: tuple[PlannedVariable, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all variables."""
        return sum(row.bytes for row in self.rows)

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the variables that each device holds."""
        return sum(row.bytes_per_device for row in self.rows)

    def __str__(self) -> str:
        cells = [("variable", "shape", "spec", "bytes", "per device", "reason")]
        for row in self.rows:
            spec = ", ".join("-" if name is None else name for name in row.spec)
            cells.append(
                (row.path, str(row.shape), f"({spec})", str(row.bytes), str(row.bytes_per_device), row.reason)
            )
        cells.append(("all", "", "", str(self.bytes), str(self.bytes_per_device), f"{self.device_count} devices"))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join(line.rstrip() for line in lines)
