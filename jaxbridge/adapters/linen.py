"""flax.linen modules as PureModels."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxbridge._optional import require
from jaxbridge.core import prng
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.errors import StructureError

require("flax.linen", "FlaxLayer")

import flax  # noqa: E402
from flax import linen  # noqa: E402

#: Streams that initialisation draws from besides "params", where the user names none.
_INIT_STREAMS = ("dropout",)


def from_module(
    module: linen.Module, method: Callable[..., Any] | str | None = None, rngs: Sequence[str] | None = None
) -> PureModel:
    """Makes a PureModel of a linen module.

    Args:
        module: the module, unbound.
        method: the method to call, by name or as a function of the module; `__call__` if None.
        rngs: names of the random streams of a training call; None for those that the module asks for.

    Returns:
        The model. Its params are `{"params": ...}`, its state the other collections, as `module.init` returns them.
    """
    if not isinstance(module, linen.Module):
        raise StructureError(
            f"`module` must be an instance of flax.linen.Module, got {module!r} of type {type(module).__name__}."
        )
    rngs = None if rngs is None else tuple(rngs)
    function = getattr(type(module), method) if isinstance(method, str) else method or module.__call__
    arguments = inspect.signature(function).parameters
    takes_training, takes_mask = "training" in arguments, "mask" in arguments

    def keywords(inputs: CallInputs, training: bool) -> dict[str, Any]:
        extra: dict[str, Any] = {"training": training} if takes_training else {}
        if takes_mask and inputs.mask is not None:
            extra["mask"] = inputs.mask
        return {**extra, **inputs.kwargs}

    def init(key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        streams = prng.stream_keys(key, ("params", *(_INIT_STREAMS if rngs is None else rngs)))
        variables = module.init(streams, *inputs.args, method=method, **keywords(inputs, training))
        return split_variables(variables)

    def apply(
        params: Any, state: Any, key: Any, inputs: CallInputs, training: bool, *, streams: tuple[str, ...]
    ) -> tuple[Any, Any]:
        outputs, updated = module.apply(
            {**(params or {}), **(state or {})},
            *inputs.args,
            rngs=prng.stream_keys(key, streams),
            method=method,
            # Only collections that exist from the start are state: what is sown during a call is dropped.
            mutable=list(state or {}),
            **keywords(inputs, training),
        )
        return outputs, {**(state or {}), **flax.core.unfreeze(updated)}

    def with_streams(streams: tuple[str, ...]) -> PureModel:
        return PureModel(
            init,
            functools.partial(apply, streams=streams),
            streams,
            takes_mask,
            identity=(module, method, rngs),
        )

    def resolve(params: Any, state: Any, inputs: CallInputs) -> PureModel:
        return with_streams(_streams_asked_for(with_streams, params, state, inputs))

    if rngs is not None:
        return with_streams(rngs)
    return dataclasses.replace(with_streams(()), resolve=resolve)


def split_variables(variables: Any) -> tuple[Any, Any]:
    """Returns the params `{"params": ...}` and the other collections of a linen variable dict, without their boxes."""
    is_box = lambda node: isinstance(node, linen.meta.AxisMetadata)
    if any(map(is_box, jax.tree.leaves(variables, is_leaf=is_box))):
        warnings.warn(
            "The module annotates its variables with shardings (`nn.with_partitioning`). They are not applied: lay the "
            "variables out by their paths with `keras.distribution.LayoutMap`.",
            stacklevel=2,
        )
    plain = flax.core.unfreeze(linen.meta.unbox(variables))
    state = {name: collection for name, collection in plain.items() if name != "params"}
    return ({"params": plain["params"]} if "params" in plain else {}), state


def _streams_asked_for(
    with_streams: Callable[[tuple[str, ...]], PureModel], params: Any, state: Any, inputs: CallInputs
) -> tuple[str, ...]:
    """Returns the streams that a training call cannot do without: linen names the missing one in its error."""
    streams: tuple[str, ...] = ()
    while True:
        model = with_streams(streams)
        try:
            jax.eval_shape(
                lambda p, s, i, model=model: model.apply(p, s, jax.random.key(0), i, True), params, state, inputs
            )
            return streams
        except flax.errors.InvalidRngError as error:
            missing = re.search(r'needs PRNG for "([^"]+)"', str(error))
            if missing is None or missing[1] in streams:
                raise
            streams += (missing[1],)
