"""How a layer's arrays are split over a mesh of devices, as a value: names and sizes of axes, no device.

Specs are `jax.sharding.PartitionSpec`s. A name in a spec is an axis of the mesh, or a logical axis that rules translate.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from jaxbridge.core import specs
from jaxbridge.core.constraints import Placement
from jaxbridge.core.pure_model import CallInputs
from jaxbridge.core.specs import Rules, Specs
from jaxbridge.core.tree_paths import path_text
from jaxbridge.errors import ShardingError

#: What a layer takes for `sharding` to say that the annotations of its module are not wanted.
IGNORE = "ignore"

_PARTS = ("params", "inputs", "outputs")


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Sharding:
    """A mesh by names and sizes, and how variables, inputs and outputs are split over it.

    It needs no devices and no backend: layers apply it on both, files carry it. Equal values are equal and hash alike.

    Args:
        mesh: axis name -> size, in the order of the devices; or a `jax.sharding.Mesh`, an `AbstractMesh` or a
            `keras.distribution.DeviceMesh`, of which names and sizes are read. None: that of the Keras distribution in
            effect.
        params: variable -> spec, as a mapping from paths (`"Dense_0/kernel"`, the collection `params/` may be left out)
            or patterns (`"*/kernel"`; `*` stands for any text, slashes too), or as a pytree of specs. It wins over what
            the module itself says of a variable.
        inputs: the spec of every input, or specs in the structure of the inputs (a spec may stand for a whole subtree).
        outputs: the same for the outputs.
        rules: logical axis -> mesh axis, a tuple of axes or None, as a mapping or as pairs, of which the first whose
            axes are free wins (as in flax).

    Raises:
        ShardingError: a spec, a size or a rule cannot be read, or an axis is neither of the mesh nor in `rules`.

    Example:
        >>> from jax.sharding import PartitionSpec as P
        >>> from jaxbridge import Sharding
        >>> sharding = Sharding({"data": 2, "model": 4}, params={"*/kernel": P(None, "model")}, inputs=P("data"))
        >>> Sharding.from_json(sharding.to_json()) == sharding
        True
    """

    mesh_axes: tuple[tuple[str, int], ...] | None
    param_specs: Specs
    input_specs: Specs
    output_specs: Specs
    rules: Rules

    def __init__(self, mesh: Any = None, params: Any = None, inputs: Any = None, outputs: Any = None, rules: Any = ()):
        put = lambda name, value: object.__setattr__(self, name, value)
        put("mesh_axes", None if mesh is None else tuple(specs.axes_of(mesh).items()))
        put("rules", _rules(rules))
        put("param_specs", _specs(params, "params"))
        put("input_specs", _specs(inputs, "inputs"))
        put("output_specs", _specs(outputs, "outputs"))
        if self.mesh_axes is not None:
            self._check_names(dict(self.mesh_axes))

    def _check_names(self, axes: Mapping[str, int]) -> None:
        for name, target in self.rules:
            for axis in specs.axes_in(target):
                if axis not in axes:
                    raise specs.missing_axis(f"the rule for '{name}'", P(target), axis, axes)
        for name in ("param", "input", "output"):
            for path, spec in getattr(self, f"{name}_specs"):
                specs.mesh_spec(spec, self.rules, axes, f"`{name}s`{path and f' ({path})'}")

    def __repr__(self) -> str:
        parts = {"mesh": self.mesh, "params": self.params, "inputs": self.inputs, "outputs": self.outputs}
        said = ", ".join(f"{name}={value!r}" for name, value in {**parts, "rules": self.rules}.items() if value)
        return f"Sharding({said})"

    @property
    def mesh(self) -> dict[str, int] | None:
        """Axis name -> size; None for that of the Keras distribution in effect."""
        return None if self.mesh_axes is None else dict(self.mesh_axes)

    @property
    def params(self) -> dict[str, P]:
        """Path or pattern -> spec."""
        return dict(self.param_specs)

    @property
    def inputs(self) -> dict[str, P]:
        """Path in the structure of the inputs -> spec of what is there and below; "" is the whole."""
        return dict(self.input_specs)

    @property
    def outputs(self) -> dict[str, P]:
        """Path in the structure of the outputs -> spec of what is there and below; "" is the whole."""
        return dict(self.output_specs)

    def abstract_mesh(self) -> AbstractMesh:
        """Returns the mesh without devices; all its axes are of the type Auto.

        Raises:
            ShardingError: the value has no mesh of its own.
        """
        return specs.abstract_mesh(self._own_mesh())

    def device_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Returns the mesh over the first of these devices (None: of `jax.devices()`).

        Raises:
            ShardingError: there are too few, or the value has no mesh of its own.
        """
        return specs.device_mesh(self._own_mesh(), devices)

    def _own_mesh(self) -> dict[str, int]:
        if self.mesh is None:
            raise ShardingError(
                "This Sharding has no mesh of its own. Write `Sharding(mesh={'data': 2, 'model': 4}, ...)`."
            )
        return self.mesh

    def annotate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn(params, *inputs)` with the constraints of this value around it, as a plain function.

        Inside, specs without a mesh (`jax.lax.with_sharding_constraint(x, P("data"))`) refer to this mesh. Outside of a
        trace nothing is constrained; on one device nothing is split, and the results are the same.

        Args:
            fn: a function of a pytree of params and any number of further pytrees of arrays.

        Returns:
            The function. It raises a ShardingError while it is traced: an entry of `params` that names no leaf, a spec
            of another rank, a size (other than that of axis 0 of an input or output, which is a warning) that is not
            divisible.

        Raises:
            ShardingError: the value has no mesh of its own.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from jax.sharding import PartitionSpec as P
            >>> from jaxbridge import Sharding
            >>> sharding = Sharding({"data": 2}, inputs=P("data"))
            >>> jaxpr = jax.make_jaxpr(sharding.annotate(lambda params, x: x @ params))(jnp.ones((3, 3)), jnp.ones((4, 3)))
            >>> [str(equation.primitive) for equation in jaxpr.eqns]
            ['sharding_constraint', 'dot_general']
        """
        placement = Placement(tuple(self._own_mesh().items()), self.rules, self.input_specs, self.output_specs)

        def annotated(params: Any, *inputs: Any) -> Any:
            pairs, treedef = jax.tree_util.tree_flatten_with_path(params)
            paths = [path_text(path) for path, _ in pairs]
            said = specs.variable_specs(self.param_specs, paths)
            with placement.scope((params, inputs)):
                leaves = placement.variables_constrained([v for _, v in pairs], [(p, said.get(p)) for p in paths])
                given = placement.inputs_constrained(CallInputs(inputs))
                return placement.outputs_constrained(fn(jax.tree.unflatten(treedef, leaves), *given.args))

        return annotated

    # As text.

    def to_config(self) -> dict[str, Any]:
        """Returns the value as JSON can hold it."""
        return {
            "mesh": None if self.mesh_axes is None else [list(axis) for axis in self.mesh_axes],
            **{n: {k: specs.spec_to_list(s) for k, s in getattr(self, f"{n[:-1]}_specs")} for n in _PARTS},
            "rules": [[name, list(target) if isinstance(target, tuple) else target] for name, target in self.rules],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sharding:
        """Returns the value that `to_config` wrote."""
        mesh = config.get("mesh")
        parts = {n: {key: specs.spec_from_list(spec) for key, spec in config.get(n, {}).items()} for n in _PARTS}
        return cls(
            None if mesh is None else dict(mesh), **parts, rules=[tuple(rule) for rule in config.get("rules", ())]
        )

    def to_json(self) -> str:
        """Returns the value as JSON text, the same for equal values."""
        return json.dumps(self.to_config(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Sharding:
        """Returns the value that `to_json` wrote."""
        return cls.from_config(json.loads(text))


def _specs(tree: Any, name: str) -> Specs:
    """Returns path -> spec of a spec, a mapping from paths, or a pytree of specs; sorted."""
    if tree is None:
        return ()
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, P))
    return tuple(sorted((path_text(p), specs.as_spec(spec, f"`{name}`, '{path_text(p)}',")) for p, spec in pairs))


def _rules(rules: Any) -> Rules:
    pairs = list((rules.items() if isinstance(rules, Mapping) else rules) or ())
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not (pair[1] is None or isinstance(pair[1], str | tuple | list)):
            raise ShardingError(
                f"`rules` must be pairs of a logical axis and an axis of the mesh, a tuple of axes or None; got {pair!r}."
            )
    return tuple((name, tuple(target) if isinstance(target, list) else target) for name, target in pairs)
