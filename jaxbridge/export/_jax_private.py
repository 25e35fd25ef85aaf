"""What reloading a module in JAX needs and has no public name (tried with jax 0.10 and 0.12).

A module that `jax.export` wrote holds the mesh of its sharding constraints, and runs on one device or on that many. There is
no public way to give it another mesh: the fields of `Exported` that say so are private, and so is the writer of modules
that hold the `sdy` dialect. `tests/export/test_private_apis.py` fails when the names below move.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.export
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import _jax
from jax.sharding import AbstractMesh, NamedSharding
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxbridge.jax2tf._jax_private import serialize_module, visit_operations

_MANUAL = "sdy.manual_computation"


@dataclasses.dataclass(frozen=True)
class ModuleSharding:
    """What a module says of sharding.

    Attributes:
        meshes: the axes of each mesh, by name.
        constraints: the text of each constraint's sharding, in order.
        is_manual: whether it holds a `shard_map`, whose body is compiled for the sizes of its mesh.
        partitions: for how many devices it was written.
    """

    meshes: tuple[dict[str, int], ...]
    constraints: tuple[str, ...]
    is_manual: bool
    partitions: int


def module_sharding(module: str | bytes) -> ModuleSharding:
    """Returns what a module, as text or as a portable artifact, says of sharding."""
    meshes, constraints, names = [], [], set()

    def visit(operation: Any) -> None:
        names.add(operation.name)
        if operation.name == "sdy.mesh":
            meshes.append(_axes(operation))
        elif operation.name == "sdy.sharding_constraint":
            constraints.append(str(operation.attributes["sharding"]))

    with _mlir.make_ir_context():
        parsed = ir.Module.parse(_text(module))
        visit_operations(parsed, visit)
        attributes = parsed.operation.attributes
        count = ir.IntegerAttr(attributes["mhlo.num_partitions"]).value if "mhlo.num_partitions" in attributes else 1
    return ModuleSharding(tuple(meshes), tuple(constraints), _MANUAL in names, count)


def with_mesh(exported: jax.export.Exported, axes: Mapping[str, int]) -> jax.export.Exported:
    """Returns a function that was exported with constraints on a mesh of these axes, with these sizes in their place.

    Args:
        exported: the function; its derivative is changed in the same way.
        axes: name -> size, in the order of the devices.
    """
    place = lambda sharding: _with_mesh(sharding, axes)
    return dataclasses.replace(
        exported,
        mlir_module_serialized=_rewritten(exported.mlir_module(), axes),
        nr_devices=1 if exported.nr_devices == 1 else math.prod(axes.values()),
        _in_named_shardings=tuple(map(place, exported._in_named_shardings)),
        _out_named_shardings=tuple(map(place, exported._out_named_shardings)),
        # When it is asked for: one that was just exported has derivatives of any order.
        _get_vjp=(lambda _: with_mesh(exported.vjp(), axes)) if exported.has_vjp() else None,
    )


def _with_mesh(sharding: Any, axes: Mapping[str, int]) -> Any:
    if sharding is None or not sharding.mesh.axis_names:
        return sharding
    types = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=tuple(types[name] for name in axes))
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def _rewritten(module: str, axes: Mapping[str, int]) -> bytes:
    def visit(operation: Any) -> None:
        if operation.name == "sdy.mesh" and _axes(operation):
            operation.attributes["mesh"] = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(n, s) for n, s in axes.items()])

    with _mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        visit_operations(parsed, visit)
        attributes = parsed.operation.attributes
        if "mhlo.num_partitions" in attributes and ir.IntegerAttr(attributes["mhlo.num_partitions"]).value > 1:
            total = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), math.prod(axes.values()))
            attributes["mhlo.num_partitions"] = total
        text = str(parsed)
    return serialize_module(text, stablehlo.get_current_version())


def _axes(operation: Any) -> dict[str, int]:
    found = map(sdy.MeshAxisAttr, sdy.MeshAttr(operation.attributes["mesh"]).axes)
    return {axis.name: axis.size for axis in found}


def _text(module: str | bytes) -> str:
    if isinstance(module, str):
        return module
    text = _jax.mlir.deserialize_portable_artifact(bytes(module))
    return text if isinstance(text, str) else _mlir.module_to_string(text)
