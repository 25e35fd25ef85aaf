"""Sharding constraints around a function, on a mesh without devices.

A constraint on an abstract mesh needs no device while it is traced: on arrays that live on a mesh of its size JAX splits
them so, on one device it is without effect, in an exported module it is an annotation.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxbridge.core import specs
from jaxbridge.core.pure_model import CallInputs
from jaxbridge.core.specs import Rules, Specs
from jaxbridge.core.tree_paths import path_text
from jaxbridge.errors import PartitionerError

_rules: contextvars.ContextVar[Rules] = contextvars.ContextVar("rules", default=())


def rules_in_effect() -> Rules:
    """Returns the rules for logical axes of the function that is being traced, for the libraries that have such."""
    return _rules.get()


@functools.partial(jax.tree_util.register_dataclass, data_fields=("value",), meta_fields=("spec", "rules"))
@dataclasses.dataclass(frozen=True)
class Annotated:
    """In the place of a leaf of params or state: the leaf, and what its module says of how it is split.

    Attributes:
        value: the array.
        spec: axes of the mesh, or logical axes.
        rules: the module's own rules for logical axes.
    """

    value: Any
    spec: P
    rules: Rules = ()


def is_annotated(node: Any) -> bool:
    """Returns whether a node of a pytree is an `Annotated`."""
    return isinstance(node, Annotated)


def without_annotations(tree: Any) -> Any:
    """Returns a pytree with the leaves in the place of each `Annotated`."""
    return jax.tree.map(lambda node: node.value if is_annotated(node) else node, tree, is_leaf=is_annotated)


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh, and the specs of what goes into and out of a function; one without axes does nothing.

    Attributes:
        axes: names and sizes of the mesh's axes.
        rules: for logical axes.
        inputs: path in the structure of the inputs -> spec.
        outputs: path in the structure of the outputs -> spec.
        params: a path and a spec (or None) for each of a layer's params.
        state: the same for its state.
        warns: whether a batch that cannot be split is worth a warning: where arrays are split, or every batch is of its size.
    """

    axes: tuple[tuple[str, int], ...] = ()
    rules: Rules = ()
    inputs: Specs = ()
    outputs: Specs = ()
    params: tuple[tuple[str, P | None], ...] = ()
    state: tuple[tuple[str, P | None], ...] = ()
    warns: bool = True

    @contextlib.contextmanager
    def scope(self, arrays: Any = ()) -> Iterator[None]:
        """Returns a context in which specs without a mesh, and logical axes, are those of this mesh.

        To be entered by what is traced, since a gradient is traced later than the function itself.

        Args:
            arrays: a pytree of what the function takes. Arrays that are on devices bring their mesh with them, which says more
                than names and sizes (the kind of device), and JAX wants one mesh for all.
        """
        if not self.axes:
            yield
            return
        token = _rules.set(self.rules)
        try:
            with jax.sharding.use_abstract_mesh(self._mesh(arrays)):
                yield
        finally:
            _rules.reset(token)

    def _mesh(self, arrays: Any) -> AbstractMesh:
        own = specs.abstract_mesh(dict(self.axes))
        for leaf in jax.tree.leaves(arrays):
            mesh = getattr(jax.typeof(leaf).sharding, "mesh", None) if isinstance(leaf, jax.Array) else None
            if mesh is not None and _described(mesh) == _described(own):
                return mesh
        return own

    def variables_constrained(self, values: Sequence[Any], said: Sequence[tuple[str, P | None]]) -> list[Any]:
        """Returns values of params or state with their constraints; None stays None."""
        if not any(spec is not None for _, spec in said):
            return list(values)
        return self.constrained(values, [spec for _, spec in said], [f"'{path}'" for path, _ in said])

    def inputs_constrained(self, inputs: CallInputs) -> CallInputs:
        """Returns the inputs of a call with their constraints; the mask follows by itself.

        The path of an only positional input starts at that input; those of several are "0", "1", ... and the names.
        """
        if not self.inputs:
            return inputs
        if len(inputs.args) == 1 and not inputs.kwargs:
            return dataclasses.replace(inputs, args=(self._tree_constrained(inputs.args[0], self.inputs, "input"),))
        named = {**dict(zip(map(str, range(len(inputs.args))), inputs.args, strict=True)), **inputs.kwargs}
        named = self._tree_constrained(named, self.inputs, "input")
        args = tuple(named[str(index)] for index in range(len(inputs.args)))
        return dataclasses.replace(inputs, args=args, kwargs={name: named[name] for name in inputs.kwargs})

    def outputs_constrained(self, outputs: Any) -> Any:
        """Returns the outputs with their constraints."""
        return self._tree_constrained(outputs, self.outputs, "output")

    def constrained(
        self, values: Sequence[Any], wanted: Sequence[P | None], names: Sequence[str], batch: bool = False
    ) -> list[Any]:
        """Returns values with constraints, checked against their shapes; untouched outside of a trace.

        Args:
            values: arrays; what is none stays as it is.
            wanted: a spec (or None) each.
            names: how messages name each.
            batch: whether a size of axis 0 that cannot be split is a warning.
        """
        axes = dict(self.axes)
        found = []
        for value, spec, name in zip(values, wanted, names, strict=True):
            if spec is not None and hasattr(value, "shape"):
                spec = specs.mesh_spec(spec, self.rules, axes, name)
                specs.check_spec(spec, value.shape, axes, name, batch=batch, warns=self.warns)
                if isinstance(value, jax.core.Tracer):
                    _check_partitioner()
                    value = jax.lax.with_sharding_constraint(
                        value, NamedSharding(jax.sharding.get_abstract_mesh(), spec)
                    )
            found.append(value)
        return found

    def _tree_constrained(self, tree: Any, said: Specs, what: str) -> Any:
        if not said:
            return tree
        pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
        paths = [path_text(path) for path, _ in pairs]
        wanted = specs.tree_specs(said, paths, what)
        names = [f"the {what}{path and f' {path!r}'}" for path in paths]
        return jax.tree.unflatten(treedef, self.constrained([leaf for _, leaf in pairs], wanted, names, batch=True))


#: That of a function that nothing is said of.
NOWHERE = Placement()


def _described(mesh: AbstractMesh) -> tuple[Any, ...]:
    return mesh.axis_names, mesh.axis_sizes, mesh.axis_types


def _check_partitioner() -> None:
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        raise PartitionerError(
            "The option `jax_use_shardy_partitioner` is off, and JAX then writes sharding constraints without the names of "
            "the mesh's axes. Turn it on: `jax.config.update('jax_use_shardy_partitioner', True)`."
        )
