"""What was planned for a model's variables."""

from __future__ import annotations

import dataclasses

from jaxbridge.core.text_table import aligned


@dataclasses.dataclass(frozen=True)
class PlannedVariable:
    """The plan for one variable.

    Attributes:
        path: the variable's path.
        shape: its shape.
        spec: the mesh axis (or None) of each dimension.
        bytes: its size.
        device_bytes: the size of the part that one device holds.
        reason: why.
    """

    path: str
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]
    bytes: int
    device_bytes: int
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
    def device_bytes(self) -> int:
        """The bytes of the variables that each device holds."""
        return sum(row.device_bytes for row in self.rows)

    def __str__(self) -> str:
        cells = [("variable", "shape", "spec", "bytes", "bytes per device", "reason")]
        for row in self.rows:
            spec = ", ".join("-" if name is None else name for name in row.spec)
            cells.append((row.path, str(row.shape), f"({spec})", f"{row.bytes:,}", f"{row.device_bytes:,}", row.reason))
        cells.append(("in all", "", "", f"{self.bytes:,}", f"{self.device_bytes:,}", f"{self.device_count} devices"))
        return "\n".join(aligned(cells))
