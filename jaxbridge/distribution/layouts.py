"""Where a variable's layout comes from: what somebody asked for by name, else its annotation, else replicated."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
from jax.sharding import PartitionSpec

from jaxbridge import backends
from jaxbridge.distribution import _keras_private
from jaxbridge.distribution.matching import Match, one_key
from jaxbridge.distribution.native import backend_mesh, layout_on
from jaxbridge.distribution.specs import Axes, axes_of_spec, check_axes
from jaxbridge.errors import ShardingError


@dataclasses.dataclass(frozen=True)
class Decision:
    """How a variable is laid out, and who said so.

    Attributes:
        axes: per dimension the axis or axes of the mesh that it is split over, or None; None without a distribution.
        device_mesh: the `keras.distribution.DeviceMesh`; None without a distribution.
        source: "LayoutMap" (of the distribution in effect), "scope" (`layout_map_scope`), "distribution" (one with rules
            of its own), "annotation", "replicated"; "" without a distribution.
        key: the key that matched, where the source has keys.
    """

    axes: Axes | None = None
    device_mesh: Any = None
    source: str = ""
    key: str | None = None

    @property
    def layout(self) -> Any:
        """The layout as the backend has it, or None."""
        return None if self.axes is None else layout_on(self.device_mesh, self.axes)


def decide(
    path: str, shape: Sequence[int], annotation: PartitionSpec | None = None, *, match: Match | None = None
) -> Decision:
    """Decides the layout of a variable under the distribution in effect.

    Args:
        path: the variable's path in Keras.
        shape: its shape.
        annotation: what its module asks for, or None.
        match: what was asked for by name; None to ask the distribution.

    Returns:
        The decision: a match by name wins, then the annotation, then it is replicated over the mesh. Without a distribution,
        and on backends whose variables Keras does not distribute, no layout.

    Raises:
        ShardingError: several keys match; or the mesh lacks an axis, or a size is not divisible.

    Example:
        >>> from jaxbridge.distribution.layouts import decide
        >>> decide("net/params/kernel", (16, 32)).layout is None
        True
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return Decision()
    if not backends.current().distributes:
        warn_without_effect(f"keras.distribution.{type(distribution).__name__}")
        return Decision()
    rank, mesh = len(shape), distribution.device_mesh
    match = match or named_layout(distribution, path, shape)
    if match is not None:
        axes, mesh = _parts(match.layout, rank, mesh, path)
        decision = Decision(axes, mesh, match.source, match.key)
    elif annotation is not None:
        decision = Decision(axes_of_spec(annotation, rank), mesh, "annotation")
    else:
        decision = Decision((None,) * rank, mesh, "replicated")
    check_decision(decision, path, shape)
    return decision


def mesh_of(decisions: Sequence[Decision]) -> Any:
    """Returns the backend's mesh that variables are laid out over; None where none is."""
    return next((backend_mesh(d.device_mesh) for d in decisions if d.device_mesh is not None), None)


def check_decision(decision: Decision, path: str, shape: Sequence[int]) -> None:
    """Raises a ShardingError if an array of this shape cannot be laid out so."""
    origins = {"annotation": "its annotation", "LayoutMap": "the LayoutMap key", "scope": "the layout_map_scope's key"}
    origin = origins.get(decision.source, decision.source) + (f" '{decision.key}'" if decision.key else "")
    mesh = decision.device_mesh
    assert decision.axes is not None
    check_axes(path, shape, decision.axes, dict(zip(mesh.axis_names, mesh.shape, strict=True)), origin)


def named_layout(distribution: Any, path: str, shape: Sequence[int]) -> Match | None:
    """Returns what a distribution says of a path by its name; None where it says nothing, or "replicated" of everything.

    Raises:
        ShardingError: several keys match.
    """
    if isinstance(distribution, NamesLayouts):
        return distribution.named_layout(path, shape)
    layout_map = _keras_private.layout_map_of(distribution)
    key = None if layout_map is None else one_key(layout_map, path, [path])
    # It looks up in the map, or in whatever a subclass has in its place.
    layout = distribution.get_tensor_layout(path)
    if layout is not None:
        return Match(layout, "LayoutMap", key or "")
    layout = distribution.get_variable_layout(_Described(path, tuple(shape)))
    return None if is_replicated(layout) else Match(layout, "distribution", type(distribution).__name__)


class NamesLayouts:
    """A distribution that answers `named_layout` itself."""

    def named_layout(self, path: str, shape: Sequence[int]) -> Match | None:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class _Described:
    """What a distribution reads of a variable that is not made yet: its layout must be known before its value is."""

    path: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def layout_parts(layout: Any) -> tuple[Any, Sequence[Any]]:
    """Returns the `DeviceMesh` (None: not said) and the axes of a TensorLayout or a layout of the backend."""
    if isinstance(layout, keras.distribution.TensorLayout):
        return layout.device_mesh, layout.axes
    return None, backends.current().layout_parts(layout)[1]


def is_replicated(layout: Any) -> bool:
    """Returns whether a layout (None: none) splits nothing."""
    return layout is None or all(axis is None for axis in layout_parts(layout)[1])


def _parts(layout: Any, rank: int, mesh: Any, path: str) -> tuple[Axes, Any]:
    own_mesh, axes = layout_parts(layout)
    if own_mesh is not None and not same_devices(own_mesh, mesh):
        raise ShardingError(
            f"The layout of '{path}' is for {own_mesh}, and the distribution in effect has {mesh} on other devices. One step "
            "runs on one set of devices: make the layouts with the distribution's mesh."
        )
    return axes_of_spec(axes, rank), own_mesh or mesh


def same_devices(one: Any, other: Any) -> bool:
    """Returns whether two meshes have the same devices, in the same order."""
    return list(map(str, one.devices.flat)) == list(map(str, other.devices.flat))


@functools.cache  # once per process
def warn_without_effect(what: str) -> None:
    """Warns that a distribution does nothing on this backend."""
    warnings.warn(
        f"{what} is in effect, and Keras does not distribute on this backend: every variable stays whole on "
        "one device. Use the JAX backend (KERAS_BACKEND=jax), or tf.distribute for data parallelism.",
        stacklevel=3,
    )


def remember(variable: keras.Variable, decision: Decision) -> None:
    """Keeps with a variable why it is laid out as it is; Keras keeps only the layout."""
    variable.layout_decision = decision


def remembered(variable: keras.Variable) -> Decision | None:
    """Returns what `remember` kept."""
    return getattr(variable, "layout_decision", None)
