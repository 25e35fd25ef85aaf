"""The one value the library hangs on: a model as two pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxbridge.core import prng


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CallInputs:
    """What a layer was called with, as one pytree.

    Attributes:
        args: the positional inputs, each a pytree of arrays.
        kwargs: the inputs given by name.
        mask: the Keras mask (a pytree of boolean arrays), or None.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    mask: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WithLosses:
    """What `apply` returns in the place of outputs where a model also has losses of its own.

    Attributes:
        outputs: the outputs.
        losses: a pytree of losses, which the layer adds by `add_loss`.
    """

    outputs: Any
    losses: Any


@dataclasses.dataclass(frozen=True)
class PureModel:
    """A model as pure functions: everything below the Keras face starts from this value.

    Attributes:
        init: `init(key, inputs, training) -> (params, state)`. `key` is a typed JAX key or a structure of them,
            `inputs` a `CallInputs`. None when there is nothing to initialise (no params and no state). A leaf may come as
            `constraints.Annotated`, where the module itself says how it wants to be split over devices.
        apply: `apply(params, state, key, inputs, training) -> (outputs, state)`. Always five arguments, always
            returns the state, and in it the very array that was given where one did not change. `key` is None when the
            call must not draw. The outputs may come as `WithLosses`.
        rng_streams: names of the random streams that a call with `training=True` draws from; empty when it draws
            nothing. A call that draws nothing gets the key None, and never advances the seed.
        inference_streams: the same of a call with `training=False`.
        uses_mask: whether `apply` reads `inputs.mask`.
        resolve: `resolve(params, state, inputs) -> PureModel`, of abstract arrays, for a model that knows its streams
            only once it has seen its inputs; None when everything is known.
        identity: what `init` and `apply` compute, for `core.canonical.canonical_key`: models whose keys are equal share
            traces, compilations and conversions. None: nothing is shared.
    """

    init: Callable[[Any, CallInputs, bool], tuple[Any, Any]] | None
    apply: Callable[[Any, Any, Any, CallInputs, bool], tuple[Any, Any]]
    rng_streams: tuple[str, ...] = ()
    inference_streams: tuple[str, ...] = ()
    uses_mask: bool = False
    resolve: Callable[[Any, Any, CallInputs], PureModel] | None = None
    identity: Any = None

    def streams(self, training: bool) -> tuple[str, ...]:
        """Returns the names of the streams that a call in this mode draws from."""
        return self.rng_streams if training else self.inference_streams

    def with_key_impl(self, impl: str | None) -> PureModel:
        """Returns the model with keys of another implementation (None: as they are)."""
        if impl is None or impl == prng.KEY_IMPL:
            return self
        init, apply, resolve = self.init, self.apply, self.resolve
        return dataclasses.replace(
            self,
            init=init and (lambda key, inputs, training: init(prng.with_impl(key, impl), inputs, training)),
            apply=lambda p, s, key, inputs, training: apply(p, s, prng.with_impl(key, impl), inputs, training),
            resolve=resolve and (lambda params, state, inputs: resolve(params, state, inputs).with_key_impl(impl)),
            identity=None if self.identity is None else (impl, self.identity),
        )
