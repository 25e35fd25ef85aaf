"""Where variables and inputs lie on a mesh, and how another process is told."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbridge.core import specs
from jaxbridge.distribution._keras_private import layout_map_of
from jaxbridge.errors import LoweringError

#: The axes of a mesh: pairs of a name and a size.
Axes = tuple[tuple[str, int], ...]


def variable_sharding(variable: keras.Variable, has_value: bool) -> NamedSharding | None:
    """Returns how a variable is laid out: as Keras' distribution says, else as its value is; None for nowhere in particular."""
    distribution = keras.distribution.distribution()
    if distribution is not None:
        return _from_keras(distribution.get_variable_layout(variable))
    sharding = getattr(variable.value, "sharding", None) if has_value else None
    return sharding if isinstance(sharding, NamedSharding) else None


def input_sharding(struct: jax.ShapeDtypeStruct) -> jax.sharding.Sharding | None:
    """Returns how an input is laid out: as it says itself, else as Keras' distribution lays out data."""
    distribution = keras.distribution.distribution()
    if struct.sharding is not None or distribution is None or not struct.shape:
        return struct.sharding
    return _from_keras(distribution.get_data_layout(struct.shape))


def _from_keras(layout: Any) -> NamedSharding | None:
    """Returns a Keras layout as JAX's; on the TensorFlow backend Keras has no function for it."""
    if layout is None or isinstance(layout, NamedSharding):
        return layout
    mesh = layout.device_mesh
    return NamedSharding(_mesh(tuple(zip(mesh.axis_names, mesh.shape, strict=True))), PartitionSpec(*layout.axes))


def _mesh(axes: Axes) -> Mesh:
    sizes, devices = [size for _, size in axes], jax.devices()
    count = math.prod(sizes)
    if len(devices) < count:
        raise LoweringError(
            f"A mesh of {' x '.join(map(str, sizes))} needs {count} devices and JAX sees {len(devices)}. To compile for one "
            f"on a machine without, start Python with XLA_FLAGS=--xla_force_host_platform_device_count={count}."
        )
    return specs.device_mesh(dict(axes), devices)


# For another process: meshes and shardings hold devices, which stay where they are.


@dataclasses.dataclass(frozen=True)
class Placement:
    """A sharding without its devices.

    Attributes:
        axes: the mesh; empty for a single device.
        spec: which axes of the mesh each dimension is split over.
    """

    axes: Axes
    spec: tuple[Any, ...]

    @classmethod
    def of(cls, sharding: Any) -> Placement | None:
        """Returns the placement of a sharding; None where it says of no mesh and no device."""
        if isinstance(sharding, NamedSharding):
            return cls(tuple(sharding.mesh.shape.items()), tuple(sharding.spec))
        return cls((), ()) if isinstance(sharding, jax.sharding.SingleDeviceSharding) else None

    def on_devices(self) -> jax.sharding.Sharding:
        """Returns the sharding on this process' devices."""
        if not self.axes:
            return jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return NamedSharding(_mesh(self.axes), PartitionSpec(*self.spec))

    def abstract(self) -> jax.sharding.Sharding:
        """Returns the sharding on a mesh without devices."""
        if not self.axes:
            return jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return NamedSharding(specs.abstract_mesh(dict(self.axes)), PartitionSpec(*self.spec))


@dataclasses.dataclass(frozen=True)
class DistributionRecord:
    """A `keras.distribution` without its devices.

    Attributes:
        axes: the mesh.
        batch_dim_name: the axis of the mesh that data is split over.
        layouts: pattern -> axes, of a ModelParallel; None for DataParallel.
    """

    axes: Axes
    batch_dim_name: str | None
    layouts: dict[str, tuple[Any, ...]] | None

    @classmethod
    def current(cls) -> DistributionRecord | None:
        """Returns the distribution in effect; None where there is none."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return None
        mesh = distribution.device_mesh
        axes = tuple(zip(mesh.axis_names, mesh.shape, strict=True))
        layouts, layout_map = None, layout_map_of(distribution)
        if layout_map is not None:
            layouts = {pattern: tuple(layout.axes) for pattern, layout in layout_map.items()}
        elif not isinstance(distribution, keras.distribution.DataParallel):
            raise LoweringError(
                f"A distribution of type {type(distribution).__name__} cannot be made anew in another process."
            )
        return cls(axes, distribution.batch_dim_name, layouts)

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(size for _, size in self.axes)

    def enter(self) -> None:
        """Makes the distribution this process' own."""
        names, sizes = zip(*self.axes, strict=True)
        devices = keras.distribution.list_devices()[: self.devices]
        mesh = keras.distribution.DeviceMesh(sizes, names, devices)
        if self.layouts is None:
            distribution: Any = keras.distribution.DataParallel(device_mesh=mesh)
        else:
            layout_map = keras.distribution.LayoutMap(mesh)
            for pattern, axes in self.layouts.items():
                layout_map[pattern] = axes
            distribution = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name=self.batch_dim_name)
        keras.distribution.set_distribution(distribution)
