"""Whether a model reads its key, found by tracing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxbridge.adapters.base import Streams
from jaxbridge.core.jaxprs import depends_on
from jaxbridge.core.pure_model import CallInputs, PureModel


def reads_key(apply: Callable[..., Any], params: Any, state: Any, inputs: Any, training: bool) -> bool:
    """Returns whether a call's outputs or state depend on the key, for abstract arguments."""

    def run(words: Any, params: Any, state: Any, inputs: Any) -> Any:
        return apply(params, state, jax.random.wrap_key_data(words, impl="threefry2x32"), inputs, training)

    words = jax.ShapeDtypeStruct((2,), "uint32")
    jaxpr = jax.make_jaxpr(run)(words, params, state, inputs)
    return bool(depends_on(jaxpr.jaxpr, {0}))


def with_found_streams(
    model: PureModel, streams: tuple[str, ...], said: Streams, params: Any, state: Any, inputs: CallInputs
) -> PureModel:
    """Returns a model with the streams that its calls read, out of the only ones that it can have.

    Args:
        model: the model.
        streams: what there is to draw from.
        said: what the user says of them.
        params: abstract.
        state: abstract.
        inputs: abstract.
    """
    reads = lambda training: reads_key(model.apply, params, state, inputs, training)
    drawn = reads(True)  # also says what is wrong with the call, before anything else is done
    training = streams if said.named or drawn else ()
    try:
        inference = streams if said.always or (streams and not said.training and reads(False)) else ()
    except Exception:  # a module of one mode only; a call in the other says what is wrong
        inference = ()
    return dataclasses.replace(model, rng_streams=training, inference_streams=inference, resolve=None)
