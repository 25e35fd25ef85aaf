"""JaxLayer: pure JAX functions as a Keras layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras

from jaxbridge.core.functions import from_functions
from jaxbridge.core.partition import Sharding
from jaxbridge.errors import SignatureError
from jaxbridge.layers import saving
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.config import pack_arrays
from jaxbridge.layers.keras_arguments import checked_layer


@keras.saving.register_keras_serializable(package="jaxbridge")
class JaxLayer(BridgeLayer):
    """A Keras layer that wraps a JAX function, on Keras' JAX and TensorFlow backends.

    Takes the place of `keras.layers.JaxLayer`.

    Args:
        call_fn: the function to call. It takes, by name and in any order, `inputs` (required: an array or pytree of
            arrays) and any of `params` (a pytree), `state` (a pytree), `rng` (a raw uint32[2] key in training mode, None
            otherwise), `training` (a bool) and `mask`. It returns the outputs (an array or pytree of arrays), and with
            `state` the pair of the outputs and the new state.
        init_fn: the function that makes the first params: takes any of `rng`, `inputs` (placeholder ones, of the real
            shapes and dtypes) and `training` (True). It returns params, and if `call_fn` takes `state` the pair of params
            and state. Not called where `params` or `state` is given.
        params: a pytree of arrays to start from.
        state: a pytree of arrays to start from.
        compute_output_shape_fn: gives the output's shape (or structure of shapes) for the input's; it overrides what
            tracing finds, and is compared with the first output.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, t, 3)" per input, in the structure
            of the inputs. Equal names are equal sizes; sizes may be expressions such as "4*k".
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        seed: seed of the draws, at least 0 and below 2**32; None for one from Keras' global seed. Draw number n (from 0)
            gets the key `fold_in(key(seed), n)`, `init_fn` gets `fold_in(key(seed), crc32("init"))`.
        rng_impl: "threefry2x32", "rbg" or "unsafe_rbg" for typed keys of this implementation; None for raw keys.
        native_serialization_platforms: platforms the function is lowered for on the TensorFlow backend, out of "cpu",
            "cuda", "rocm" and "tpu"; None for the one in use, plus "cpu".
        nan: "keep": maxima and minima of floats are NaN where an operand is, as in JAX and numpy. "fast": on the TensorFlow
            backend they are as its compiler has them, which on CPU may drop the NaN. Without effect on the JAX backend;
            exports have a `nan` of their own.
        sharding: how arrays are split over a mesh: a `jaxbridge.Sharding`, or None for not at all.
        **kwargs: of `keras.layers.Layer`.

    Raises:
        SignatureError: an argument of `call_fn` or `init_fn` is not understood, or nothing says what the params are.
        StructureError: at a call, the state comes back in another structure, shape or dtype; nothing is written then.
        ShapeError: a size breaks a declared shape or constraint.
        ShardingError: `sharding` does not fit the variables, inputs, outputs or the mesh in effect.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from jaxbridge import JaxLayer
        >>> def init(rng, inputs):
        ...     return {"w": jax.random.normal(rng, (inputs.shape[-1], 2))}
        >>> def call(params, inputs):
        ...     return jnp.tanh(inputs @ params["w"])
        >>> layer = JaxLayer(call, init, name="net")
        >>> layer(np.ones((3, 4), "float32")).shape[1], layer.weights[0].path
        (2, 'net/params/w')
    """

    @checked_layer
    def __init__(
        self,
        call_fn: Callable[..., Any],
        init_fn: Callable[..., Any] | None = None,
        params: Any = None,
        state: Any = None,
        seed: int | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        *,
        compute_output_shape_fn: Callable[..., Any] | None = None,
        polymorphic_shapes: Any = None,
        polymorphic_constraints: Sequence[str] = (),
        rng_impl: str | None = None,
        nan: str = "keep",
        sharding: Sharding | Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ):
        model, needs = from_functions(call_fn, init_fn, typed_keys=rng_impl is not None)
        if init_fn is None and params is None and state is None and needs:
            raise SignatureError(
                "`init_fn`, `params` and `state` cannot all be `None` when `call_fn` takes a `params` or a `state` argument."
            )
        super().__init__(
            model,
            (params, state),
            compute_output_shape_fn=compute_output_shape_fn,
            polymorphic_shapes=polymorphic_shapes,
            polymorphic_constraints=polymorphic_constraints,
            seed=seed,
            rng_impl=rng_impl,
            native_serialization_platforms=native_serialization_platforms,
            nan=nan,
            sharding=sharding,
            **kwargs,
        )
        self.call_fn = call_fn
        self.init_fn = init_fn

    _named_arguments: ClassVar[Mapping[str, saving.Argument]] = {
        **BridgeLayer._named_arguments,
        "call_fn": saving.ANY,
        "init_fn": saving.ANY,
        "params": saving.VARIABLES,
        "state": saving.VARIABLES,
    }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **self._packed_functions({"call_fn": self.call_fn, "init_fn": self.init_fn}),
            **self._given_config(),
        }

    def _given_config(self) -> dict[str, Any]:
        """Returns params and state without their values, where no `init_fn` could tell what they look like."""
        if self.init_fn is not None:
            return {}
        given = dict(zip(("params", "state"), self._runtime.given, strict=True))
        return {name: pack_arrays(tree, name) for name, tree in given.items() if tree is not None}
