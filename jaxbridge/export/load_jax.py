"""SavedModels back in JAX: params on a mesh of devices, and a function that runs on it."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxbridge._optional import require
from jaxbridge.core import specs
from jaxbridge.core.arguments import checked
from jaxbridge.core.partition import Sharding
from jaxbridge.errors import ExportError, ShardingError
from jaxbridge.export import artifact_files
from jaxbridge.export.artifact_files import Artifact
from jaxbridge.export.sharding import as_sharding, check_same_axes, read_records


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model, or a layer of one, as a JAX function on a mesh. Call it under `jax.jit`; it can be differentiated.

    Attributes:
        params: trainable variables by their Keras paths, split over the mesh as the SavedModel says.
        state: the other variables.
        mesh: the mesh.
        sharding: what the SavedModel says: its own mesh, and the spec of each variable.
        layer: the path of the layer; "" for a whole model.
    """

    params: dict[str, jax.Array]
    state: dict[str, jax.Array]
    mesh: Mesh
    sharding: Sharding
    layer: str
    _exported: jax.export.Exported = dataclasses.field(repr=False)
    _batch_factor: int = dataclasses.field(repr=False)

    def __call__(self, params: Mapping[str, Any], inputs: Any) -> Any:
        """Returns the outputs.

        Args:
            params: arrays by path, in the structure of `self.params`.
            inputs: the inputs, in the structure that the model was called with.

        Raises:
            DifferentiationError: under `jax.grad`, the SavedModel has no derivative.
        """
        return self.apply(params, self.state, inputs)[0]

    def apply(self, params: Mapping[str, Any], state: Mapping[str, Any], inputs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the outputs and the new state.

        Args:
            params: arrays by path, in the structure of `self.params`.
            state: arrays by path, in the structure of `self.state`.
            inputs: the inputs, in the structure that the model was called with.
        """
        leaves = jax.tree.leaves(inputs)
        wanted = self._exported.in_avals[len(self.params) + len(self.state) :]
        if len(leaves) != len(wanted):
            raise ExportError(f"The model has {len(wanted)} inputs and was given {len(leaves)}.")
        leaves = [jax.numpy.asarray(leaf, aval.dtype) for leaf, aval in zip(leaves, wanted, strict=True)]
        batch = next((leaf.shape[0] for leaf in leaves if leaf.ndim), None)
        if isinstance(batch, int) and batch % self._batch_factor:
            warnings.warn(
                f"A batch of {batch} cannot be split evenly by {self._batch_factor} on the mesh {dict(self.mesh.shape)}; JAX "
                f"leaves it whole. Choose a batch size that is a multiple of {self._batch_factor}.",
                stacklevel=3,
            )
        outputs, new_state = self._exported.call(dict(params), dict(state), leaves)
        return outputs, new_state


@checked()
def load_jax(
    path: str | os.PathLike[str], mesh: Mesh | Mapping[str, int] | None = None, *, layer: str | None = None
) -> LoadedModel:
    """Loads a SavedModel of `export_saved_model` into JAX, split over a mesh as its layers say.

    The mesh may be another than the one that the model was made for, with the same axes in other sizes (1 included, so that
    a single device does).

    Args:
        path: the SavedModel's directory.
        mesh: a `jax.sharding.Mesh`, or axis name -> size for a mesh over the first of `jax.devices()`; None for the mesh
            that the model was made for.
        layer: the path of a layer, for SavedModels of the TensorFlow backend, which hold their bridge layers one by one
            (what is between them is TensorFlow); None where there is only one.

    Returns:
        The params and a function.

    Raises:
        ExportError: the SavedModel holds nothing for JAX, or no such layer; a file in it is damaged, of a newer format, or
            names another file outside its folder.
        ShardingError: the mesh has other axes or needs more devices than there are, a variable cannot be split over it, or a
            `shard_map` inside was compiled for other sizes.

    Example:
        model = jaxbridge.load_jax("served", {"data": 4, "model": 2})
        logits = jax.jit(model)(model.params, images)
    """
    require("tensorflow", "Reading a SavedModel")
    directory = Path(path)
    chosen = _chosen(artifact_files.read(directory), directory, layer)
    sharding = as_sharding(chosen.records)
    mesh = _mesh(mesh, sharding)
    axes = dict(mesh.shape)
    exported = _on_mesh(artifact_files.exported_of(chosen), sharding.mesh or {}, axes)
    params, state = artifact_files.values(chosen, directory)
    return LoadedModel(
        _placed(params, sharding, mesh),
        _placed(state, sharding, mesh),
        mesh,
        sharding,
        chosen.layer,
        exported,
        _batch_factor(sharding, axes),
    )


def _chosen(found: Sequence[Artifact], directory: Path, layer: str | None) -> Artifact:
    if not found:
        said = read_records(directory)
        raise ExportError(
            f"{directory} holds no function for JAX. `jaxbridge.export_saved_model` writes one where layers say how their "
            f"arrays are split{' (these do: export the model with it)' if said else ' (`sharding=`)'}."
        )
    names = [one.layer for one in found]
    wanted = [one for one in found if one.layer == layer] if layer is not None else list(found)
    if len(wanted) != 1:
        raise ExportError(
            f"{directory} holds the layers {', '.join(map(repr, names))}; say which: `layer={names[0]!r}`."
            if layer is None
            else f"{directory} holds no layer {layer!r}; it has {', '.join(map(repr, names))}."
        )
    return wanted[0]


def _mesh(mesh: Any, sharding: Sharding) -> Mesh:
    """Returns the mesh to run on, its axes of the type Auto (`jax.make_mesh` makes others)."""
    axes = (sharding.mesh or {}) if mesh is None else specs.axes_of(mesh)
    check_same_axes(axes, sharding)
    return Mesh(mesh.devices, mesh.axis_names) if isinstance(mesh, Mesh) else specs.device_mesh(axes)


def _on_mesh(exported: jax.export.Exported, recorded: Mapping[str, int], axes: Mapping[str, int]) -> Any:
    from jaxbridge.export import _jax_private

    if list(recorded.items()) == list(axes.items()):
        return exported
    if _jax_private.module_sharding(exported.mlir_module()).is_manual:
        raise ShardingError(
            f"The model holds a `shard_map`, whose body is compiled for the mesh {dict(recorded)}; it cannot run on "
            f"{dict(axes)}. Load it on a mesh of the same sizes, or write it with `jax.lax.with_sharding_constraint`."
        )
    return _jax_private.with_mesh(exported, axes)


def _placed(values: Mapping[str, Any], sharding: Sharding, mesh: Mesh) -> dict[str, jax.Array]:
    placed, axes, said = {}, dict(mesh.shape), sharding.params
    for path, value in values.items():
        spec = said.get(path, P())
        specs.check_spec(spec, value.shape, axes, f"'{path}'")
        placed[path] = (value, NamedSharding(mesh, spec))
    return {path: jax.device_put(value, where) for path, (value, where) in placed.items()}


def _batch_factor(sharding: Sharding, axes: Mapping[str, int]) -> int:
    """Returns what the batch must be a multiple of, so that every layer can split it."""
    firsts = [spec[0] for said in (sharding.inputs, sharding.outputs) for spec in said.values() if len(spec)]
    return math.lcm(*(math.prod(axes[axis] for axis in specs.axes_in(entry)) for entry in firsts))
