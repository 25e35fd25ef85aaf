"""What a SavedModel says of sharding, read from its files alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxbridge._optional import require
from jaxbridge.core import records
from jaxbridge.core.arguments import checked
from jaxbridge.core.partition import Sharding
from jaxbridge.core.records import Record
from jaxbridge.errors import ShardingError


@checked()
def read_sharding(path: str | os.PathLike[str]) -> Sharding:
    """Returns how the bridge layers of a SavedModel want their arrays to be split.

    The files are read, nothing is loaded or run; JAX devices are not needed, and neither are as many as the mesh has. It does
    not matter who wrote the SavedModel (`export_saved_model`, Keras' `model.export`, `tf.saved_model.save` of a loaded one):
    the op of a converted function carries it.

    Args:
        path: the SavedModel's directory.

    Returns:
        The mesh; the specs of variables by their Keras paths; the specs of the layers' inputs and outputs by the layers'
        paths, in mesh axes.

    Raises:
        ShardingError: nothing in it says so, its layers name different meshes, or a file is damaged.
        MissingDependencyError: TensorFlow is not installed.

    Example:
        sharding = jaxbridge.read_sharding("served")
        sharding.mesh, sharding.params["net/head/params/Dense_0/kernel"]
    """
    found = read_records(path)
    if not found:
        raise ShardingError(
            f"Nothing in {path} says how arrays are split. Pass `sharding=` to the layers, or export under a "
            "`keras.distribution.ModelParallel`."
        )
    return as_sharding(found)


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Returns the records of a SavedModel's layers, each once."""
    require("tensorflow", "Reading a SavedModel")
    from jaxbridge.export import _tf_private
    from jaxbridge.jax2tf.call_module import RECORD_ATTRIBUTE

    directory = Path(path)
    if not (directory / "saved_model.pb").exists():
        raise ShardingError(f"{directory} is no SavedModel: it has no file saved_model.pb.")
    texts = [node.attr[RECORD_ATTRIBUTE].s for node in _tf_private.nodes(directory, "XlaCallModule")]
    return list(dict.fromkeys(r for text in texts if text for r in records.from_json(text.decode(errors="replace"))))


def check_same_axes(axes: Iterable[str], sharding: Sharding) -> None:
    """Raises a ShardingError if a mesh has other axes than the one that a SavedModel was made for."""
    if set(axes) != set(sharding.mesh or {}):
        raise ShardingError(
            f"The mesh has the axes {', '.join(map(repr, axes))}, and the SavedModel was made for "
            f"{', '.join(map(repr, sharding.mesh or {}))}. Give a mesh with these names; the sizes may differ."
        )


def as_sharding(found: Sequence[Record]) -> Sharding:
    """Returns records as one value.

    Raises:
        ShardingError: their meshes differ.
    """
    first = found[0]
    for record in found:
        if record.axes != first.axes:
            raise ShardingError(
                f"Layer '{first.layer}' is for the mesh {dict(first.axes)} and layer '{record.layer}' for {dict(record.axes)}; "
                "one program runs on one mesh. Give both the same."
            )
    below = lambda record, said: {f"{record.layer}/{path}".rstrip("/"): spec for path, spec in said}
    return Sharding(
        dict(first.axes),
        params={path: spec for record in found for path, spec in record.params},
        inputs={path: spec for record in found for path, spec in below(record, record.inputs).items()},
        outputs={path: spec for record in found for path, spec in below(record, record.outputs).items()},
    )
