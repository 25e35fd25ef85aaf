"""`lower`: a layer or model as the compiler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxbridge import backends
from jaxbridge.core.arguments import checked
from jaxbridge.core.tree_paths import clean_path, describe_leaf
from jaxbridge.errors import JaxBridgeError, LoweringError, ShapeError
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.stages.abstract import LAYER, Target, declared_inputs, find_target
from jaxbridge.stages.programs import Program, bridge_program, keras_program
from jaxbridge.stages.records import Compiled, Lowered, compiled_record, cost_dict


@checked(layer_or_model=LAYER)
def lower(
    layer_or_model: Any,
    inputs: Any = None,
    training: bool = False,
    platforms: Sequence[str] | None = None,
    *,
    gradient: bool = False,
    batch_size: int = 1,
) -> Lowered:
    """Lowers the call of a layer or model to the compiler's language, without running anything.

    No weight needs a value: of a layer that is not built, or is made by a function, only shapes are found. What is
    lowered is the JAX function of the call. A bridge layer has one on both Keras backends, another layer or a model on Keras'
    JAX backend.

    Args:
        layer_or_model: any Keras layer or model, built or not, which is left as it is; or a function without arguments
            that makes one.
        inputs: what it is called with: `keras.KerasTensor`s (None for unknown sizes), `jax.ShapeDtypeStruct`s or arrays, in
            the structure of the call. A tuple is several positional inputs, except for a functional model. Shapes are
            global ones. An input with a `NamedSharding` keeps it, others are laid out as Keras' distribution says. None for
            those that a functional or sequential model declares.
        training: whether in training mode.
        platforms: what to lower for, out of "cpu", "cuda", "rocm" and "tpu"; None for the one JAX runs on here. The
            devices need not be there for `as_text`.
        gradient: whether to lower the backward pass too, from the cotangents of the floating outputs to the gradients with
            respect to the trainable variables.
        batch_size: the size of axis 0 where `inputs` is None and the model leaves it open.

    Returns:
        An object in the shape of `jax.stages.Lowered`. Its figures are those of the compiler, and None where it gives
        none. XLA counts the body of a loop (`jax.lax.scan`) once, and nothing for calls of libraries (`jnp.linalg`).

    Raises:
        LoweringError: there is nothing to lower, nothing says what the inputs are, a platform is unknown, or the layer is no
            bridge layer on Keras' TensorFlow backend.
        ShapeError: it cannot be traced with its unknown sizes, or a size breaks a shape that the layer declares.

    Example:
        >>> import jax, keras, numpy as np
        >>> import jaxbridge
        >>> init = lambda rng, inputs: {"w": jax.random.normal(rng, (inputs.shape[-1], 16))}
        >>> layer = jaxbridge.JaxLayer(lambda params, inputs: inputs @ params["w"], init, name="net")
        >>> lowered = jaxbridge.lower(layer, keras.KerasTensor((32, 8)))
        >>> lowered.cost_analysis()["flops"]  # 2 * 32 * 8 * 16
        8192.0
        >>> lowered.compile().memory_analysis().argument_size_in_bytes  # 4 * (32 * 8 + 8 * 16)
        1536
    """
    platforms = None if platforms is None else tuple(platforms)
    target = find_target(layer_or_model, declared_inputs(batch_size) if inputs is None else inputs)
    return lower_program(program_of(target, training), platforms, gradient)


def program_of(target: Target, training: bool) -> Program:
    """Returns the call of a target, which JAX traces; a LoweringError says where it cannot."""
    layer, rest = target.layer, (target.inputs, bool(training), target.has_values)
    if isinstance(layer, BridgeLayer):
        return bridge_program(layer, *rest)
    if not backends.current().traces_with_jax:
        raise LoweringError(
            f"Keras' {backends.name()} backend runs '{layer.name}', a {type(layer).__name__}, without JAX, so there is no JAX "
            "function of it to lower. Set the environment variable KERAS_BACKEND=jax before Keras is imported (the command "
            "`jaxbridge lower` sets it itself), or lower a layer of jaxbridge by itself."
        )
    return keras_program(layer, *rest)


def lower_program(program: Program, platforms: tuple[str, ...] | None, gradient: bool) -> Lowered:
    """Lowers a program in this process."""

    def call(*arguments: Any) -> Any:
        return program.call_with_gradient(*arguments) if gradient else program.call(*arguments)

    call.__name__ = clean_path(program.name).replace("/", "_")  # the module's name is made of it
    try:
        arguments = (program.variables, program.inputs, *([program.cotangents()] if gradient else []))
        stage = jax.jit(call).trace(*arguments).lower(lowering_platforms=platforms)
    except JaxBridgeError:
        raise
    except Exception as error:  # whatever a function raises at sizes that it does not know
        if not program.has_unknown_sizes:
            raise
        raise ShapeError(
            f"'{program.name}' cannot be traced for inputs {_shown(program)}: {type(error).__name__}: {error}\nGive sizes that "
            "are numbers, such as 8, 28, 28, 1."
        ) from error
    return Lowered(
        (arguments, {}),
        stage.out_info,
        lambda dialect: _text(stage, program, dialect),
        lambda: None if _obstacle(program, platforms) else cost_dict(stage.cost_analysis()),
        lambda: _compile(stage, program, platforms),
    )


def _text(stage: jax.stages.Lowered, program: Program, dialect: str) -> str:
    if program.has_unknown_sizes and dialect == "hlo":
        raise LoweringError(f"HLO has no unknown sizes, and the inputs are {_shown(program)}. Ask for 'stablehlo'.")
    return stage.as_text(dialect)


def _compile(stage: jax.stages.Lowered, program: Program, platforms: tuple[str, ...] | None) -> Compiled:
    obstacle = _obstacle(program, platforms)
    if obstacle is not None:
        raise LoweringError(f"'{program.name}' cannot be compiled: {obstacle}")
    return compiled_record(stage.compile())


def _obstacle(program: Program, platforms: tuple[str, ...] | None) -> str | None:
    """Returns why there are no figures of this platform; None where there are."""
    here = jax.default_backend()
    if program.has_unknown_sizes:
        return f"the inputs {_shown(program)} have unknown sizes. Lower it for known ones."
    if platforms not in (None, (here,)) and (here != "gpu" or platforms not in (("cuda",), ("rocm",))):
        # JAX would compile it all the same, for the platform that is here.
        return (
            f"it was lowered for {', '.join(platforms)}, and JAX runs on {here} here. Lower it for {here}, the default."
        )
    return None


def _shown(program: Program) -> str:
    return ", ".join(map(describe_leaf, jax.tree.leaves(program.inputs)))
