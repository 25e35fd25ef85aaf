"""ModuleLayer: a module of any library as a Keras layer."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras

from jaxbridge import adapters
from jaxbridge.adapters import ModuleOptions
from jaxbridge.core.partition import Sharding
from jaxbridge.layers import saving
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.keras_arguments import checked_layer


@keras.saving.register_keras_serializable(package="jaxbridge")
class ModuleLayer(BridgeLayer):
    """A Keras layer that wraps a module of any library that has an adapter, on Keras' JAX and TensorFlow backends.

    Adapters come with jaxbridge for `flax.linen`, `flax.nnx`, `dm-haiku`, `equinox` and plain functions; others are
    added by entry points or `jaxbridge.adapters.register`.

    What the module returns is what the layer returns. In a functional or Sequential model, where Keras must find the tensors,
    FrozenDicts and objects with fields (dataclasses that JAX knows, `eqx.Module`) are dicts by the names of their fields,
    and fields that are None are left out. An axis that the module reduces over by its name (`axis_name="batch"`) has size 1,
    where nobody else has bound it: the arrays are whole ones, however they are split over devices. Under `tf.distribute`
    each replica reduces over its own part of the batch.

    Args:
        module: an instance; or a class, whose module is made with `args`, `kwargs` and the layer's seed when the layer is
            built; or a function that `haiku` transformed; or a function with the arguments that `JaxLayer` names, or the
            pair `(init_fn, call_fn)` of such functions.
        method: the method to call, by name or as a function whose first argument is the module; `__call__` if None. It
            takes the layer's inputs as the layer is called with them, and optionally a training flag and `mask`.
        variables: values to start from, where the library keeps them apart from the module: what `module.init` returns
            (linen), the params or the pair of params and state (haiku), the `eqx.nn.State` of an instance (Equinox).
        args: positional arguments of the class `module`.
        kwargs: keyword arguments of the class `module`; keys and `rngs` are made if they are not given.
        rngs: names of random streams that a training call draws from, besides those that the module asks for, which are
            found while building, in either mode. A mapping says of each "training" (inference never draws from it),
            "always" (inference draws from it whether the module asks or not) or "argument" (it is an argument of the call
            that is a key, such as `{"z_rng": "argument"}`: that of the stream of its name). Required arguments of the names
            `rng`, `rngs`, `key`, `rng_key`, `prng_key` and of those that end in `_rng` are found.
        training_flag: what of the module follows `training`. None: arguments of the common names `training`, `train`,
            `is_training` and, inverted, `deterministic`, `use_running_average`, `inference`; the modes of NNX and
            Equinox modules. A name: that argument or attribute; or the path of a value inside an attribute, such as
            "config.deterministic". A mapping: names with the pair of their values in training mode and at inference, such
            as `{"mode": ("train", "eval")}`.
        call_kwargs: keyword arguments that every call of the module has.
        collections: what becomes of a collection (linen) or a type of `nnx.Variable` (NNX): "params" (trained), "state"
            (kept between calls), "training" (state that changes in training mode only), "return" (the layer returns the
            pair of the outputs and a dict of these), "loss" (added to the model's losses) or "drop". Not named: "params"
            and `nnx.Param` are trained, linen's "batch_stats" change in training mode only, what is sown into
            "intermediates" and `nnx.Intermediate` is dropped, all else is state.
        vmap: whether the module takes a single example (Equinox), so that it is mapped over axis 0 of its inputs.
        compute_output_shape_fn: gives the output's shape (or structure of shapes) for the input's; it overrides what
            tracing finds, and is compared with the first output.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, t, 3)" per input, in the structure
            of the inputs. Equal names are equal sizes; sizes may be expressions such as "4*k".
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        seed: seed of the draws, at least 0 and below 2**32; None for one from Keras' global seed. Stream N of draw number
            n (from 0) gets the key `fold_in(fold_in(key(seed), n), crc32(N))`; initialisation has n = crc32("init"). An
            NNX module draws from its own keys unless this is given.
        rng_impl: the implementation of the keys: "threefry2x32" (None), "rbg" or "unsafe_rbg".
        native_serialization_platforms: platforms the module is lowered for on the TensorFlow backend, out of "cpu",
            "cuda", "rocm" and "tpu"; None for the one in use, plus "cpu".
        nan: "keep": maxima and minima of floats are NaN where an operand is, as in JAX and numpy. "fast": on the TensorFlow
            backend they are as its compiler has them, which on CPU may drop the NaN. Without effect on the JAX backend;
            exports have a `nan` of their own.
        sharding: how arrays are split over a mesh: a `jaxbridge.Sharding`; None for what the module itself says of its
            variables, on the mesh of the Keras distribution in effect; "ignore" for not at all.
        **options: of `keras.layers.Layer`.

    Raises:
        MissingDependencyError: the library is not installed.
        SignatureError: an option does not fit the module.
        StructureError: no adapter knows `module`, or the state comes back in another structure, shape or dtype.
        ShapeError: a size breaks a declared shape or constraint.
        ShardingError: `sharding` does not fit the variables, inputs, outputs or the mesh in effect.

    Example:
        >>> import equinox as eqx, numpy as np
        >>> from jaxbridge import ModuleLayer
        >>> layer = ModuleLayer(eqx.nn.Linear, args=(4, 2), vmap=True, name="net")
        >>> layer(np.ones((3, 4), "float32")).shape[1], [w.path for w in layer.weights]
        (2, ['net/params/bias', 'net/params/weight'])
    """

    @checked_layer
    def __init__(
        self,
        module: Any,
        method: Callable[..., Any] | str | None = None,
        variables: Any = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        rngs: Sequence[str] | Mapping[str, str] | None = None,
        training_flag: str | Mapping[str, Sequence[Any]] | None = None,
        call_kwargs: Mapping[str, Any] | None = None,
        collections: Mapping[Any, str] | None = None,
        vmap: bool = False,
        compute_output_shape_fn: Callable[..., Any] | None = None,
        polymorphic_shapes: Any = None,
        polymorphic_constraints: Sequence[str] = (),
        seed: int | None = None,
        rng_impl: str | None = None,
        nan: str = "keep",
        native_serialization_platforms: Sequence[str] | None = None,
        sharding: Sharding | Mapping[str, Any] | str | None = None,
        **options: Any,
    ):
        said = ModuleOptions(
            method,
            tuple(args),
            dict(kwargs or {}),
            variables,
            dict(rngs) if isinstance(rngs, Mapping) else None if rngs is None else tuple(rngs),
            dict(training_flag) if isinstance(training_flag, Mapping) else training_flag,
            dict(call_kwargs or {}),
            dict(collections or {}),
            vmap,
            seeded=seed is not None,
        )
        adapter = self._find_adapter(module)
        adapter.check(said)
        adapted = adapter.adapt(module, said)
        super().__init__(
            adapted.model,
            adapted.start,
            adapted.scopes,
            compute_output_shape_fn=compute_output_shape_fn,
            polymorphic_shapes=polymorphic_shapes,
            polymorphic_constraints=polymorphic_constraints,
            seed=seed,
            rng_impl=rng_impl,
            native_serialization_platforms=native_serialization_platforms,
            nan=nan,
            sharding=sharding,
            **options,
        )
        # One value that Keras does not look into: it would wrap dicts, and take an NNX module for a part of the layer.
        self._said = _Said(module, said)

    def _find_adapter(self, module: Any) -> adapters.Adapter:
        return adapters.find_adapter(module)

    @property
    def module(self) -> Any:
        """The module, class or function that the layer was given."""
        return self._said.module

    @property
    def method(self) -> Callable[..., Any] | str | None:
        """The method that is called, as it was given."""
        return self._said.options.method

    _named_arguments: ClassVar[Mapping[str, saving.Argument]] = {
        **BridgeLayer._named_arguments,
        "module": saving.ANY,
        "method": saving.ANY,
        "rngs": saving.NAMES,
        "training_flag": saving.FLAG,
        "call_kwargs": saving.WORDS,
        "collections": saving.MAPPING,
        "args": saving.SEQUENCE,
        "kwargs": saving.WORDS,
        "vmap": saving.BOOL,
    }

    def get_config(self) -> dict[str, Any]:
        said = self._said.options
        # A method of the module is known by its name.
        method = said.method.__name__ if isinstance(said.method, types.MethodType) else said.method
        options = {"method": method, "rngs": said.rngs, "training_flag": said.training_flag}
        options |= {"call_kwargs": said.call_kwargs or None, "collections": said.collections or None}
        options |= {"args": said.args or None, "kwargs": said.kwargs or None, "vmap": said.vmap or None}
        return {
            **super().get_config(),
            "module": saving.pack(self.module, "`module`"),
            **{name: saving.pack(value, f"`{name}`") for name, value in options.items() if value is not None},
        }


class _Said:
    def __init__(self, module: Any, options: ModuleOptions):
        self.module = module
        self.options = options
