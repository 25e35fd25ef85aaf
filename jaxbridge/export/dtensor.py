"""The variables of a SavedModel as TensorFlow's DTensor variables, split as its layers say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec as P

from jaxbridge._optional import require
from jaxbridge.core import specs
from jaxbridge.core.arguments import checked
from jaxbridge.errors import ShardingError
from jaxbridge.export.sharding import check_same_axes, read_sharding


@checked()
def dtensor_variables(path: str | os.PathLike[str], mesh: Any) -> dict[str, Any]:
    """Returns the variables of a SavedModel as `tf.experimental.dtensor.DVariable`s with layouts, for storage.

    TensorFlow cannot run a converted function on them: bring them to one device for that, or load the model in JAX with
    `load_jax`. A checkpoint of them can be restored on another mesh.

    Args:
        path: the SavedModel's directory.
        mesh: a `tf.experimental.dtensor.Mesh` with the axes that the SavedModel names, of any sizes.

    Returns:
        Variable by its name; one that nothing is said of is replicated.

    Raises:
        ShardingError: nothing in the SavedModel says how arrays are split, the mesh has other axes, a size cannot be split,
            or a dimension is to be split over several axes, which DTensor cannot.

    Example:
        mesh = tf.experimental.dtensor.create_mesh([("data", 2), ("model", 4)], devices=[f"CPU:{i}" for i in range(8)])
        kernel = jaxbridge.dtensor_variables("served", mesh)["net/params/kernel"]
    """
    tf = require("tensorflow", "DTensor variables")
    from jaxbridge.export import _tf_private

    sharding = read_sharding(path)
    axes = {name: mesh.dim_size(name) for name in mesh.dim_names}
    check_same_axes(axes, sharding)
    values = _tf_private.variables(Path(path))
    layouts = {
        name: _layout(tf, sharding.params.get(name, P()), value.shape, axes, mesh, name)
        for name, value in values.items()
    }
    return {name: _variable(tf, value, layouts[name], mesh, name) for name, value in values.items()}


def _layout(tf: Any, spec: P, shape: tuple[int, ...], axes: dict[str, int], mesh: Any, name: str) -> Any:
    specs.check_spec(spec, shape, axes, f"'{name}'")
    entries = [specs.axes_in(entry) for entry in spec] + [()] * (len(shape) - len(spec))
    if any(len(entry) > 1 for entry in entries):
        raise ShardingError(f"'{name}' has the spec {spec}; DTensor splits a dimension over one axis only.")
    dtensor = tf.experimental.dtensor
    return dtensor.Layout([entry[0] if entry else dtensor.UNSHARDED for entry in entries], mesh)


def _variable(tf: Any, value: Any, layout: Any, mesh: Any, name: str) -> Any:
    dtensor = tf.experimental.dtensor
    whole = dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, value.ndim))
    return dtensor.DVariable(dtensor.relayout(whole, layout), name=name)
