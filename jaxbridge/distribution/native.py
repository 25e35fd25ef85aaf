"""Keras' meshes and layouts as the backend's own, and back."""

from __future__ import annotations

import functools
from typing import Any

import keras

from jaxbridge import backends
from jaxbridge.distribution import _keras_private
from jaxbridge.distribution.specs import Axes, spec_text
from jaxbridge.errors import ShardingError


def backend_mesh(device_mesh: keras.distribution.DeviceMesh) -> Any:
    """Returns a mesh as the Keras backend has it; for equal meshes the same object.

    Args:
        device_mesh: a `keras.distribution.DeviceMesh`.

    Returns:
        On JAX a `jax.sharding.Mesh` with axes of type Auto; on TensorFlow a `tf.experimental.dtensor.Mesh`, for which
        logical CPUs are made and DTensor is initialised where that has not been done.

    Raises:
        ShardingError: the mesh has more devices than there are; on TensorFlow also where its runtime is up already, so that
            DTensor can no longer be initialised.

    Example:
        >>> import keras
        >>> from jaxbridge.distribution import backend_mesh
        >>> mesh = keras.distribution.DeviceMesh((1,), ["data"], devices=["cpu:0"])
        >>> backend_mesh(mesh) is backend_mesh(keras.distribution.DeviceMesh((1,), ["data"], devices=["cpu:0"]))
        True
    """
    return _backend_mesh(backends.current(), _MeshKey(device_mesh))


def backend_layout(tensor_layout: keras.distribution.TensorLayout) -> Any:
    """Returns a layout as the Keras backend has it; for equal layouts the same object.

    Args:
        tensor_layout: a `keras.distribution.TensorLayout` with its mesh.

    Returns:
        On JAX a `jax.sharding.NamedSharding`, on TensorFlow a `tf.experimental.dtensor.Layout`.

    Raises:
        ShardingError: as `backend_mesh`.
        ValueError: the layout has no mesh.
    """
    if tensor_layout.device_mesh is None:
        raise ValueError(
            f"{tensor_layout} has no mesh, so it says nothing of devices. Write TensorLayout(axes, device_mesh), or take it "
            "from a LayoutMap that has one."
        )
    return layout_on(tensor_layout.device_mesh, tuple(tensor_layout.axes))


def layout_on(device_mesh: keras.distribution.DeviceMesh, axes: Axes) -> Any:
    """Returns the backend's layout of an array that is split like this; dimensions may be split over several axes."""
    return _backend_layout(backends.current(), backend_mesh(device_mesh), axes)


def keras_mesh(mesh: Any) -> keras.distribution.DeviceMesh:
    """Returns a backend's mesh as a `keras.distribution.DeviceMesh`; for equal meshes the same object.

    Args:
        mesh: what `backend_mesh` returns; it need not come from there.
    """
    return _keras_mesh(backends.current(), mesh)


def keras_layout(layout: Any) -> keras.distribution.TensorLayout:
    """Returns a backend's layout as a `keras.distribution.TensorLayout`.

    Args:
        layout: what `backend_layout` returns; it need not come from there.

    Raises:
        ShardingError: it is a layout that Keras has no words for: without a named mesh, or with one dimension split over
            several axes.
    """
    mesh, axes = backends.current().layout_parts(layout)
    if any(isinstance(axis, tuple) for axis in axes):
        raise ShardingError(
            f"{spec_text(axes)} splits one dimension over several axes, which a TensorLayout cannot say. Use the backend's "
            "layout as it is: Keras takes it in every place of a TensorLayout."
        )
    return keras.distribution.TensorLayout(axes, keras_mesh(mesh))


def layout_of(variable: keras.Variable) -> Any:
    """Returns the layout of a variable.

    Args:
        variable: a variable of a layer, an optimizer or a metric.

    Returns:
        A `keras.distribution.TensorLayout`; the backend's own layout where a TensorLayout cannot say it (a dimension over
        several axes); None where there is none: the variable was made without a distribution, or on TensorFlow.

    Example:
        >>> import keras, numpy as np
        >>> from jaxbridge.distribution import layout_of
        >>> layout_of(keras.Variable(np.zeros(3))) is None
        True
    """
    layout = _keras_private.assigned_layout(variable)
    if layout is None or isinstance(layout, keras.distribution.TensorLayout):
        return layout
    is_product = any(isinstance(axis, tuple) for axis in backends.current().layout_parts(layout)[1])
    return layout if is_product else keras_layout(layout)


def assigned_backend_layout(variable: keras.Variable) -> Any:
    """Returns the backend's layout that a variable's values are put in, or None."""
    layout = _keras_private.assigned_layout(variable)
    return backend_layout(layout) if isinstance(layout, keras.distribution.TensorLayout) else layout


def assign_placed(variable: keras.Variable, value: Any) -> None:
    """Sets the value of a variable to an array of the host, which is cut there where the variable's layout splits it."""
    variable.assign(backends.current().place(value, variable.dtype, assigned_backend_layout(variable)))


class _MeshKey:
    """A DeviceMesh that is equal to others of the same devices, shape and names: Keras compares them by identity."""

    def __init__(self, device_mesh: keras.distribution.DeviceMesh):
        self.device_mesh = device_mesh
        self._value = tuple(device_mesh.axis_names), tuple(device_mesh.shape), tuple(map(str, device_mesh.devices.flat))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MeshKey) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


@functools.lru_cache(maxsize=64)
def _backend_mesh(backend: Any, key: _MeshKey) -> Any:
    return backend.mesh(key.device_mesh)


@functools.lru_cache(maxsize=1024)
def _backend_layout(backend: Any, mesh: Any, axes: Axes) -> Any:
    return backend.layout(mesh, axes)


@functools.lru_cache(maxsize=64)
def _keras_mesh(backend: Any, mesh: Any) -> keras.distribution.DeviceMesh:
    return keras.distribution.DeviceMesh(*backend.mesh_parts(mesh))
