"""FlaxLayer: flax modules as a Keras layer."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import keras

from jaxbridge.layers.base import BridgeLayer


@keras.saving.register_keras_serializable(package="jaxbridge")
class FlaxLayer(BridgeLayer):
    """A Keras layer that wraps a `flax.linen` module, on Keras' JAX and TensorFlow backends.

    Takes the place of `keras.layers.FlaxLayer`.

    Args:
        module: an instance of a `flax.linen.Module`.
        method: the method to call, by name or as a function whose first argument is the module; `__call__` if None. It
            takes the layer's inputs as the layer is called with them, and optionally `training` (a bool) and `mask`.
        variables: the module's variables as `module.init` returns them, to start from; None to initialise them when the
            layer is built.
        rngs: names of the random streams that a training call may draw from; None for those that the module asks for,
            found while building. A stream that the module only uses if it is there must be named.
        compute_output_shape_fn: gives the output's shape (or structure of shapes) for the input's; it overrides what
            tracing finds, and is compared with the first output.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, t, 3)" per input, in the structure
            of the inputs. Equal names are equal sizes; sizes may be expressions such as "4*k".
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        seed: seed of the draws, at least 0 and below 2**32; None for one from Keras' global seed. Stream N of draw number
            n (from 0) gets the key `fold_in(fold_in(key(seed), n), crc32(N))`; initialisation has n = crc32("init").
        native_serialization_platforms: platforms the module is lowered for on the TensorFlow backend, out of "cpu",
            "cuda", "rocm" and "tpu"; None for the one in use, plus "cpu".
        **kwargs: of `keras.layers.Layer`.

    Raises:
        MissingDependencyError: flax is not installed.
        StructureError: `module` is no linen module, or the state comes back in another structure, shape or dtype.
        ShapeError: a size breaks a declared shape or constraint.

    Example:
        >>> import flax.linen as nn, numpy as np
        >>> from jaxbridge import FlaxLayer
        >>> layer = FlaxLayer(nn.Dense(2), name="net")
        >>> layer(np.ones((3, 4), "float32")).shape[1], [w.path for w in layer.weights]
        (2, ['net/params/bias', 'net/params/kernel'])
    """

    def __init__(
        self,
        module: Any,
        method: Callable[..., Any] | str | None = None,
        variables: Any = None,
        *,
        rngs: Sequence[str] | None = None,
        compute_output_shape_fn: Callable[..., Any] | None = None,
        polymorphic_shapes: Any = None,
        polymorphic_constraints: Sequence[str] = (),
        seed: int | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        from jaxbridge.adapters import linen

        super().__init__(
            linen.from_module(module, method, rngs),
            (None, None) if variables is None else linen.split_variables(variables),
            # The collections, at the top of the pytrees, are the scopes.
            ("", ""),
            compute_output_shape_fn=compute_output_shape_fn,
            polymorphic_shapes=polymorphic_shapes,
            polymorphic_constraints=polymorphic_constraints,
            seed=seed,
            native_serialization_platforms=native_serialization_platforms,
            **kwargs,
        )
        self.module = module
        self.method = method
        self._rngs = None if rngs is None else tuple(rngs)

    _serialized_arguments = ("module", "method", "compute_output_shape_fn")

    def get_config(self) -> dict[str, Any]:
        # A method of the module is known by its name.
        method = self.method
        if isinstance(method, types.MethodType) and method.__self__ == self.module:
            method = method.__name__
        return {
            **super().get_config(),
            "module": keras.saving.serialize_keras_object(self.module),
            "method": keras.saving.serialize_keras_object(method),
            "rngs": None if self._rngs is None else list(self._rngs),
        }
