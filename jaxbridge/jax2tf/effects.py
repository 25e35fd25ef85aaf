"""What a jaxpr holds that must stop a conversion before it is lowered: callbacks, ordered effects, meshes, TensorFlow calls.

What happens to each:
* `jax.debug.print`, `jax.debug.callback`: left out with a warning; they compute nothing. Ordered ones are refused.
* `jax.pure_callback`, `io_callback`: refused. They are calls into the Python process that made them.
* `jax.shard_map` over more than one device: refused. TensorFlow runs a converted function on one device.
* `jax.experimental.jax2tf.call_tf`: the TensorFlow function is compiled into the module, as jax2tf does;
  `call_tf_graph=True` is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from jaxbridge.core.jaxprs import inner_jaxprs
from jaxbridge.errors import UnsupportedOperationError
from jaxbridge.jax2tf import _jax_private

_DEBUGGING = {"debug_print": "jax.debug.print", "debug_callback": "jax.debug.callback"}
_CALLBACKS = {"pure_callback": "jax.pure_callback", "io_callback": "jax.experimental.io_callback"}


def check_effects(jaxpr: Any) -> None:
    """Refuses what TensorFlow cannot run, and warns of what is left out.

    Raises:
        UnsupportedOperationError: the jaxpr holds a callback, an ordered effect, a `shard_map` over several devices, or
            a `call_tf` with `call_tf_graph=True`.
    """
    left_out: dict[str, None] = {}
    frozen: dict[str, None] = {}
    for equation, line in located_equations(jaxpr):
        message = _refusal(equation)
        if message is not None:
            raise UnsupportedOperationError(f"{place(equation.primitive.name, line)} {message}")
        if equation.primitive.name == "call_tf":
            frozen.update(dict.fromkeys(f"'{name}'" for name in _captured_variables(equation)))
        if equation.primitive.name in _DEBUGGING:
            left_out[f"`{_DEBUGGING[equation.primitive.name]}`{line and f' at {line}'}"] = None
    if frozen:
        warnings.warn(
            f"A TensorFlow function inside (`call_tf`) reads {', '.join(frozen)}. Conversion keeps the values of now as "
            "constants: the converted function sees no later assignment, and they have no gradient in it. Pass the values as "
            "arguments of the function instead.",
            stacklevel=2,
        )
    if left_out:
        warnings.warn(
            f"TensorFlow cannot call back into Python, so the converted function is without {', '.join(left_out)}: nothing "
            "is printed or called there, and the results are the same. On Keras' JAX backend they go on; in TensorFlow "
            "write `tf.print` outside of the JAX function.",
            stacklevel=2,
        )


def _captured_variables(equation: Any) -> list[str]:
    """Returns the names of the variables that the TensorFlow function of a `call_tf` reads."""
    function = equation.params["function_flat_tf"].get_concrete_function(*equation.params["args_flat_sig_tf"])
    return [variable.name for variable in function.variables]


def located_equations(jaxpr: Any, line: str = "") -> Iterator[tuple[Any, str]]:
    """Yields every equation with the line that it was written on.

    JAX keeps the jaxpr of an inner `jax.jit` for other callers, so its equations may have no line: they have the caller's.
    """
    for equation in jaxpr.eqns:
        own = _jax_private.source_line(equation) or line
        yield equation, own
        for inner in inner_jaxprs(equation):
            yield from located_equations(inner, own)


def place(primitive: str, line: str) -> str:
    """Returns a primitive and the line that it was written on, as the start of a message."""
    return f"The primitive `{primitive}`{line and f' at {line}'}"


def _refusal(equation: Any) -> str | None:
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLBACKS:
        return (
            f"(`{_CALLBACKS[name]}`) calls Python while the function runs, and TensorFlow has no JAX to call it from. "
            "Write what it does with jax.numpy, or do it outside of the converted function."
        )
    if name == "shard_map":
        mesh = parameters["mesh"]
        return _shard_map_refusal(dict(mesh.shape)) if mesh.size > 1 else None
    if name == "call_tf":
        if parameters["call_tf_graph"]:
            return (
                "(`call_tf(..., call_tf_graph=True)`) keeps a TensorFlow function inside the module, which is not carried "
                "over. Write `call_tf(f)` without `call_tf_graph`, or call the TensorFlow function beside the converted one."
            )
        return None
    if name in _DEBUGGING and _is_ordered(equation):
        return (
            f"(`{_DEBUGGING[name]}(..., ordered=True)`) has an order that TensorFlow cannot keep. Write it without "
            "`ordered=True` (it is then left out of the converted function), or remove it."
        )
    if _is_ordered(equation) and not any(True for _ in inner_jaxprs(equation)):
        return (
            "has an effect whose order JAX must keep, and TensorFlow's op for JAX functions keeps none. Do it outside of "
            "the converted function."
        )
    return None


def _is_ordered(equation: Any) -> bool:
    return bool(equation.params.get("ordered")) or any(map(_jax_private.is_ordered_effect, equation.effects))


def _shard_map_refusal(axes: dict[str, int]) -> str:
    text = ", ".join(f"{name!r}: {size}" for name, size in axes.items())
    return (
        f"(`jax.shard_map`) runs over the mesh {{{text}}}, and TensorFlow executes a converted function on one device. "
        "Write it with `jax.lax.with_sharding_constraint`, whose annotations are kept in the module and run on one device "
        "too, or give it a mesh of one device for the conversion. In JAX it works as it is."
    )
