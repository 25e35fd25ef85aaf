"""Where variables and inputs lie on a mesh."""

from __future__ import annotations

import math
from typing import Any

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxbridge.core import specs
from jaxbridge.errors import LoweringError


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
    return NamedSharding(_mesh(dict(zip(mesh.axis_names, mesh.shape, strict=True))), PartitionSpec(*layout.axes))


def _mesh(axes: dict[str, int]) -> Mesh:
    devices, count = jax.devices(), math.prod(axes.values())
    if len(devices) < count:
        raise LoweringError(
            f"A mesh of {' x '.join(map(str, axes.values()))} needs {count} devices and JAX sees {len(devices)}. To compile "
            f"for one on a machine without, start Python with XLA_FLAGS=--xla_force_host_platform_device_count={count}."
        )
    return specs.device_mesh(axes, devices)
