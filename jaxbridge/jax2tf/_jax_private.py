"""What this package needs of JAX and has no public name (tried with jax 0.7 to 0.12).

`jax.export` serialises StableHLO at a version of its own choosing, about four weeks old; TensorFlow reads only what its
release knew. `jaxlib` has a public function that serialises a module's text at a chosen version, but it does not know
the `sdy` dialect (shardings); the one below knows it. A public function of `jax.export` that takes a version would
replace this file: `tests/jax2tf/test_private_apis.py` fails when the names below move.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export
from jax._src import config as _config
from jax._src import debugging as _debugging
from jax._src import effects as _effects
from jax._src import source_info_util as _source_info_util
from jax._src.export import shape_poly as _shape_poly
from jax._src.interpreters import mlir as _mlir
from jax._src.lax import linalg as _linalg
from jax._src.lib import _jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from jaxbridge.core._jax_private import oldest_version as oldest_version
from jaxbridge.core._jax_private import written_version as written_version

#: Composites (`chlo.top_k`, exact gelu, asinh, ...) keep a decomposition of their own next to the call. With symbolic
#: sizes TensorFlow's shape refinement does not refine it ("operand has type tensor<3x4xf32>, but decomposition has type
#: tensor<?x4xf32>"), so each becomes an ordinary call of its decomposition.
_PASSES = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"


#: `jax.export` asserts that every symbolic size is at least 1 and that the constraints hold; `convert` checks the latter
#: itself and allows 0. The op would skip the assertions, but their texts are a third of a small module. Most are never
#: made (`_without_size_assertions`).
_SHAPE_ASSERTION = "stablehlo.custom_call @shape_assertion("


def portable_module(
    mlir_text: str,
    *,
    shardings: bool = True,
    accuracies: bool = True,
    source_info: bool = False,
    rewrite: Callable[[Any], None] | None = None,
) -> str:
    """Returns a module's text in the form every reader takes: composites as calls, no assertions.

    Args:
        mlir_text: the module.
        shardings: whether annotations of the Shardy partitioner stay.
        accuracies: whether ops keep the accuracy that was asked of them.
        source_info: whether files and lines stay, which are the author's absolute paths. Names of scopes always do.
        rewrite: changes the module, if given.
    """
    with _mlir.make_ir_context():
        stablehlo.register_stablehlo_passes()
        module = ir.Module.parse(mlir_text)
        passmanager.PassManager.parse(_PASSES).run(module.operation)
        if not shardings:
            visit_operations(module, _without_sharding)
        if not accuracies:
            visit_operations(module, _without_accuracy)
        if rewrite is not None:
            rewrite(module)
        lines = module.operation.get_asm(enable_debug_info=True).splitlines()
    kept = (line for line in lines if not line.lstrip().startswith(_SHAPE_ASSERTION))
    return "\n".join((_older_location if source_info else _without_files)(line) for line in kept)


#: How MLIR's text defines a location: `#loc7 = loc("a name"(#loc3))`, or a file, a call site, a fusion of several.
_LOCATION = re.compile(r'(#loc\d*) = loc\((?:("(?:[^"\\]|\\.)*")(?!:\d).*|.*)\)')

#: A range of places in a file, `"model.py":4:45 to :91`, of which older readers know the start.
_RANGE = re.compile(r'("(?:[^"\\]|\\.)*":\d+:\d+) to (?:\d+)?:\d+')


def _without_files(line: str) -> str:
    """Returns a line of a module; where it defines a location, with the name alone."""
    if not line.startswith("#loc"):
        return line
    return _LOCATION.sub(lambda match: f"{match[1]} = loc({match[2] or 'unknown'})", line)


def _older_location(line: str) -> str:
    return _RANGE.sub(r"\1", line) if line.startswith("#loc") else line


def operations(module: ir.Module) -> list[Any]:
    """Returns every operation of a module, those inside others too."""
    found: list[Any] = []

    def note(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return found


def visit_operations(module: ir.Module, visit: Callable[[Any], None]) -> None:
    """Calls `visit` with every operation of a module; it may change or erase it, since the walk is over by then."""
    for operation in operations(module):
        visit(operation)


def is_float(value: Any) -> bool:
    """Returns whether a value of a module is an array of real floats, of any width."""
    return isinstance(value.type.element_type, ir.FloatType)


def origin(value: Any) -> tuple[Any, int | None]:
    """Returns the operation that makes a value and None; or the one whose block takes it, and the argument's number."""
    if isinstance(value, ir.BlockArgument):
        return value.owner.owner, value.arg_number
    return value.owner, None


def is_splat_number(constant: Any) -> bool:
    """Returns whether a constant of floats is one number, and not NaN, everywhere."""
    value = constant.attributes["value"]
    return value.is_splat and not math.isnan(ir.FloatAttr(value.get_splat_value()).value)


def attribute_text(operation: Any, name: str) -> str:
    """Returns an attribute of text (a symbol's name, a reference to one); "" if the operation has none of this name."""
    return str(operation.attributes[name]).strip('"@') if name in operation.attributes else ""


def replace_by_choice(operation: Any, direction: str) -> None:
    """Puts `select(a <direction> b or a != a, a, b)` in the place of an operation of two floats."""
    first, second = operation.operands
    with ir.InsertionPoint(operation), operation.location:
        compared = (
            stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(how))
            for left, right, how in ((first, second, direction), (first, first, "NE"))
        )
        chosen = stablehlo.select(stablehlo.or_(*compared), first, second)
    operation.results[0].replace_all_uses_with(chosen)
    operation.erase()


def swap_operands(operation: Any) -> None:
    """Exchanges the two operands of an operation."""
    first, second = operation.operands
    operation.operands[0], operation.operands[1] = second, first


def split_clamp(clamp: Any) -> None:
    """Puts a maximum and a minimum in the place of a clamp."""
    low, value, high = clamp.operands
    with ir.InsertionPoint(clamp), clamp.location:
        within = stablehlo.minimum(stablehlo.maximum(value, low), high)
    clamp.results[0].replace_all_uses_with(within)
    clamp.erase()


def _without_sharding(operation: Any) -> None:
    if operation.name == "sdy.sharding_constraint":
        operation.results[0].replace_all_uses_with(operation.operands[0])
        operation.erase()
        return
    if operation.name == "sdy.mesh":
        operation.erase()
        return
    attributes = operation.attributes
    for name in [name for name in _names(attributes) if name.startswith("sdy.")]:
        del attributes[name]
    for name in ("arg_attrs", "res_attrs"):
        if name in attributes:
            kept = [{key: one[key] for key in _names(one) if not key.startswith("sdy.")} for one in attributes[name]]
            attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in kept])


def _names(attributes: Any) -> list[str]:
    """Returns the names of attributes; iteration gives them, or in older jaxlibs and for dictionaries named attributes."""
    return [item if isinstance(item, str) else item.name for item in attributes]


def _without_accuracy(operation: Any) -> None:
    if "result_accuracy" in operation.attributes:
        del operation.attributes["result_accuracy"]


def operations_with(mlir_text: str, attribute: str) -> list[tuple[str, str]]:
    """Returns the name and the source line (see `location_line`) of each operation that has an attribute of this name."""
    found: list[tuple[str, str]] = []
    with _mlir.make_ir_context():
        module = ir.Module.parse(mlir_text)

        def visit(operation: Any) -> None:
            if attribute in operation.attributes:
                found.append((operation.name, location_line(str(operation.location))))

        visit_operations(module, visit)
    return found


def location_line(location: str) -> str:
    """Returns the first "file.py:12" of a debug location's text, the innermost frame that JAX shows; "" if it has none."""
    match = re.search(r'"([^"]+)":(\d+)', location)
    return f"{match[1]}:{match[2]}" if match else ""


def serialize_module(mlir_text: str, version: str) -> bytes:
    """Returns a module as a portable artifact of StableHLO `version`, such as "1.13.0"."""
    return _jax.mlir.serialize_portable_artifact(mlir_text, version, True)


def calling_convention(version: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which this thread's `jax.export` writes at most this calling convention.

    `jax.config.update` would do it for every thread.
    """
    state = _config.jax_export_calling_convention_version
    return state(min(version, state.value))


def export_with_rules(
    jitted: Any,
    structs: Sequence[Any],
    platforms: Sequence[str] | None,
    disabled_checks: Sequence[Any],
    rules: Sequence[tuple[Any, Any]],
) -> jax.export.Exported:
    """Returns `jax.export.export` of a function, with lowering rules in the place of JAX's own.

    `jax.export` takes rules in a private argument; they hold for every platform. It checks custom calls against a list of
    those that JAX promises not to change, which is another question than what TensorFlow has: "ALL" switches that off.
    """
    _without_size_assertions(jitted, structs)
    checks = (*disabled_checks, jax.export.DisabledSafetyCheck.custom_call("ALL"))
    export = jax.export.export(
        jitted, platforms=platforms, disabled_checks=checks, _override_lowering_rules=tuple(rules) or None
    )
    return export(*structs)


def _without_size_assertions(jitted: Any, structs: Sequence[Any]) -> None:
    """Makes the next export of a function for these shapes write no assertions about sizes.

    They are left out of the module in any case (`_SHAPE_ASSERTION`), and making one takes time that grows with their number:
    the backward pass of 64 residual blocks, with 450 residuals of an unknown batch, took 12 s to lower instead of 1. JAX
    keeps the solved equations in a cache by the shapes, whose symbols are of a scope that nobody else has.
    """
    lowered = jitted.trace(*structs)
    avals = tuple(jax.tree.leaves(lowered.in_avals))
    if any(not isinstance(size, int) for aval in avals for size in aval.shape):
        _, constraints, _ = _shape_poly.solve_dim_vars(avals, args_kwargs_tree=lowered.in_tree)
        constraints.constraints.clear()


def linear_algebra_rules(origins: Mapping[str, str], own: Mapping[str, Callable[..., Any]]) -> list[tuple[Any, Any]]:
    """Returns (primitive, lowering rule) for primitives of linear algebra; the tables of rules are private.

    Args:
        origins: primitive -> "tpu" or "default" (JAX's rule for that platform, or for those that have none), or "here".
        own: primitive -> the JAX function of those that are "here".
    """
    found = []
    for name, origin in origins.items():
        primitive = getattr(_linalg, f"{name}_p", None)
        if primitive is None:  # JAX adds primitives; the oldest one that is supported has not got all
            continue
        if origin == "here":
            rule = _mlir.lower_fun(own[name], multiple_results=False)
        else:
            table = _mlir._lowerings if origin == "default" else _mlir._platform_specific_lowerings[origin]
            rule = table[primitive].rule
        found.append((primitive, rule))
    return found


def silent_debug_rules() -> list[tuple[Any, Any]]:
    """Returns (primitive, lowering rule) that leave out `jax.debug.print` and `jax.debug.callback`."""
    names = ("debug_callback_p", "debug_print_p")
    return [(getattr(_debugging, name), lambda ctx, *args, **_: []) for name in names if hasattr(_debugging, name)]


def custom_calls(mlir_text: str) -> list[tuple[str, str]]:
    """Returns the custom calls of a module, each once: the target, and the JAX primitive ("" if not known).

    `jax.export` gives the module as text with locations, whose innermost name is that of the primitive.
    """
    if "stablehlo.custom_call" not in mlir_text:
        return []
    with _mlir.make_ir_context():
        return list(dict.fromkeys(_custom_calls_in(ir.Module.parse(mlir_text).operation)))


def _custom_calls_in(operation: Any) -> Iterator[tuple[str, str]]:
    if operation.name == "stablehlo.custom_call":
        stack = re.match(r'loc\("([^"]*)"', str(operation.location))  # such as "jit(f)/transpose(jvp(lu))"
        primitive = re.findall(r"\w+", stack[1]) if stack else []
        yield ir.StringAttr(operation.attributes["call_target_name"]).value, primitive[-1] if primitive else ""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _custom_calls_in(inner.operation)


def source_line(equation: Any) -> str:
    """Returns the line of the user's code that an equation of a jaxpr comes from, such as "model.py:12 (call)"."""
    return re.sub(r"(:\d+):\d+", r"\1", _source_info_util.summarize(equation.source_info))


def is_ordered_effect(effect: Any) -> bool:
    """Returns whether an effect of an equation must keep its order, so that JAX threads a token through the module."""
    return _effects.ordered_effects.contains(effect)
