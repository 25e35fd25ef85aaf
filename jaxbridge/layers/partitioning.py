"""How a layer's arrays are split: what the user and the module say, on the mesh in effect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from jax.sharding import PartitionSpec as P

from jaxbridge.core import specs
from jaxbridge.core.constraints import NOWHERE, Annotated, Placement
from jaxbridge.core.partition import IGNORE, Sharding
from jaxbridge.core.records import Record
from jaxbridge.core.tree_paths import clean_paths
from jaxbridge.distribution.layouts import Decision
from jaxbridge.errors import ShardingError
from jaxbridge.layers.variables import PartitionedTree, VariableTree


class Partitioning:
    """What a layer is told of sharding, and what became of it.

    Args:
        sharding: a `Sharding`, its config, "ignore" for none whatever the module says, or None for what the module says.

    Attributes:
        placement: the constraints of the layer's function; without effect until the layer is built.
        annotations: path in the pytree, below the layer -> spec in mesh axes, for the variables that somebody said
            something of.
        specs: path of a variable below the layer -> spec in mesh axes, once it is settled.
    """

    def __init__(self, sharding: Sharding | Mapping[str, Any] | str | None):
        if isinstance(sharding, Mapping):
            sharding = Sharding.from_config(sharding)
        if not (sharding is None or sharding == IGNORE or isinstance(sharding, Sharding)):
            raise ShardingError(f"`sharding` must be a jaxbridge.Sharding, '{IGNORE}' or None, got {sharding!r}.")
        self.sharding = sharding
        self.placement: Placement = NOWHERE
        self.annotations: dict[str, P] = {}
        self.specs: dict[str, P] = {}
        self._problems: dict[str, ShardingError] = {}

    def get_config(self) -> Any:
        """Returns the argument for saving."""
        return self.sharding.to_config() if isinstance(self.sharding, Sharding) else self.sharding

    def mesh(self) -> Placement:
        """Returns the mesh in effect, for what is traced before the layer is built."""
        return Placement(self._axes(), self._said.rules)

    def read(self, name: str, parts: Sequence[PartitionedTree], scopes: Sequence[str]) -> None:
        """Finds out what is said of the params and the state of a layer that is being built.

        Raises:
            ShardingError: an entry of `params` names nothing, or there is no mesh.
        """
        originals = [path for part, scope in zip(parts, scopes, strict=True) for path in part.paths(scope)]
        paths = [path for part, scope in zip(parts, scopes, strict=True) for path in clean_paths(part.paths(scope))]
        notes = [note for part in parts for note in part.annotations]
        annotated = {path: note for path, note in zip(originals, notes, strict=True) if note is not None}
        axes = dict(self._axes())
        self.annotations, self._problems = {}, {}
        if not axes:
            self._without_mesh(name, annotated)
            return
        said = specs.variable_specs(self._said.param_specs, paths, originals)
        for path, original in zip(paths, originals, strict=True):
            try:
                spec = self._spec(said.get(path), annotated.get(original), f"'{path}' of layer '{name}'", axes)
            except ShardingError as error:  # unless a LayoutMap decides
                self._problems[original] = error
            else:
                if spec is not None:
                    self.annotations[original] = spec

    def settle(self, params: VariableTree, state: VariableTree, fixed_batch: bool) -> None:
        """Decides on the constraints, now that it is known what a Keras distribution does with each variable.

        Args:
            params: the params, not created yet.
            state: the state, not created yet.
            fixed_batch: whether the layer is for one batch size.

        Raises:
            ShardingError: an axis is missing or a size cannot be split.
        """
        axes = self._axes()
        # Anew: the layer may have been lowered on another mesh before it is built.
        self.placement, self.specs = NOWHERE, {}
        if not axes:
            return
        settled = [
            [(path, self._settled(original, shape, decision)) for path, original, shape, decision in tree.rows()]
            for tree in (params, state)
        ]
        self.specs = {path: spec for pairs in settled for path, spec in pairs if spec is not None}
        warns = fixed_batch or keras.distribution.distribution() is not None
        said = self._said
        self.placement = Placement(
            axes, said.rules, said.input_specs, said.output_specs, *map(tuple, settled), warns=warns
        )

    def _settled(self, original: str, shape: Sequence[int], decision: Decision) -> P | None:
        if decision.axes is not None and decision.source not in ("annotation", "replicated"):
            return P(*decision.axes)
        if original in self._problems:
            raise self._problems[original]
        spec = self.annotations.get(original)
        if spec is not None:
            specs.check_spec(spec, shape, dict(self._axes()), f"'{original}'")
        return spec

    def record(self, layer: str, variables: Mapping[str, keras.Variable]) -> Record | None:
        """Returns what is written into files of a built layer; None where nobody said anything.

        Args:
            layer: the layer's path.
            variables: its variables by their paths below it.
        """
        placement = self.placement
        if not (self.specs or placement.inputs or placement.outputs):
            return None
        params = tuple((variables[path].path, spec) for path, spec in self.specs.items())
        return Record(layer, placement.axes, params, *self._io())

    def _io(self) -> tuple[specs.Specs, specs.Specs]:
        axes, placement = dict(self.placement.axes), self.placement
        translated = lambda said: tuple((p, specs.mesh_spec(s, placement.rules, axes, p)) for p, s in said)
        return translated(placement.inputs), translated(placement.outputs)

    def _spec(self, said: P | None, note: Annotated | None, where: str, axes: Mapping[str, int]) -> P | None:
        if said is not None:
            return specs.mesh_spec(said, self._said.rules, axes, where)
        if note is None:
            return None
        # The module's own rules come first, as in flax.
        return specs.mesh_spec(specs.as_spec(note.spec, where), (*note.rules, *self._said.rules), axes, where)

    @property
    def _said(self) -> Sharding:
        return self.sharding if isinstance(self.sharding, Sharding) else Sharding()

    def _axes(self) -> tuple[tuple[str, int], ...]:
        """Returns the mesh in effect: that of the Keras distribution, else the `Sharding`'s own, else none."""
        if self.sharding == IGNORE:
            return ()
        own, distribution = self._said.mesh, keras.distribution.distribution()
        if distribution is None:
            return tuple((own or {}).items())
        axes = specs.axes_of(distribution.device_mesh)
        if own is not None and set(own) != set(axes):
            raise ShardingError(
                f"The layer's `sharding` has a mesh with the axes {', '.join(map(repr, own))}, and the Keras distribution in "
                f"effect one with {', '.join(map(repr, axes))}. Give both the same names; the sizes may differ."
            )
        return tuple(axes.items())

    def _without_mesh(self, name: str, annotated: Mapping[str, Annotated]) -> None:
        if isinstance(self.sharding, Sharding):
            raise ShardingError(
                f"The `sharding` of layer '{name}' has no mesh, and no Keras distribution is in effect. Write "
                "`Sharding(mesh={'data': 2, 'model': 4}, ...)`, or set a `keras.distribution.ModelParallel` before."
            )
        if annotated and self.sharding != IGNORE:
            path, note = next(iter(annotated.items()))
            more = f" and {len(annotated) - 1} more" if len(annotated) > 1 else ""
            # No error: on one device a module gives the same numbers, and a script that never names a mesh is right.
            warnings.warn(
                f"The module of layer '{name}' says how its variables are split over a mesh ('{path}': {note.spec}{more}), and "
                "no mesh is known: nothing is split, and an exported file will not say it. Set a "
                "`keras.distribution.ModelParallel`, pass `sharding=jaxbridge.Sharding(mesh={'data': 2, 'model': 4})`, or "
                f"`sharding='{IGNORE}'` if that is meant.",
                stacklevel=2,
            )
