"""dm-haiku's transformed functions and modules as PureModels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from jaxbridge._optional import require
from jaxbridge.adapters import flags
from jaxbridge.adapters._haiku_private import original_function
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, keywords, named_method
from jaxbridge.adapters.draws import reads_key
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.errors import SignatureError

require("haiku", "A haiku module")

import haiku as hk  # noqa: E402

#: Haiku has one stream, the key that `apply` takes: the layer's key for the draw itself.
STREAM = "rng"


class HaikuAdapter(Adapter):
    """What `hk.transform`, `hk.transform_with_state` and the two `hk.multi_transform`s return; or an `hk.Module` class.

    Of a multi-transformed function `method` chooses the `apply`: its name, key or index.
    """

    library: ClassVar[str] = "haiku"
    options: ClassVar[frozenset[str]] = Adapter.options | {"args", "kwargs", "variables", "rngs"}

    def handles(self, module: Any) -> bool:
        kinds = hk.Transformed | hk.TransformedWithState | hk.MultiTransformed | hk.MultiTransformedWithState
        return isinstance(module, kinds) or (isinstance(module, type) and issubclass(module, hk.Module))

    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        if isinstance(module, type):
            init, apply, function = _of_class(module, options)
            has_state = True
        else:
            if options.args or options.kwargs:
                raise SignatureError("`args` and `kwargs` are those of a class; this is a transformed function.")
            has_state = isinstance(module, hk.TransformedWithState | hk.MultiTransformedWithState)
            apply = _chosen(module.apply, options.method)
            init, function = module.init, original_function(apply)
        names, always = options.streams()
        _check_streams(names)
        model = _HaikuModel(init, apply, function, has_state, options)
        fixed = PureModel(
            model.init,
            model.apply,
            names or (),
            always,
            "mask" in flags.parameters_of(function),
            identity=("haiku", module, options.without_start()),
        )
        start = (None, None) if options.variables is None else _start(options.variables, has_state)
        if names is not None:
            return Adapted(fixed, start)
        resolve = functools.partial(_resolved, fixed)
        return Adapted(dataclasses.replace(fixed, resolve=resolve), start)


class _HaikuModel:
    def __init__(self, init: Any, apply: Any, function: Any, has_state: bool, options: ModuleOptions):
        self._init, self._apply, self._has_state, self._options = init, apply, has_state, options
        self._flags = flags.of_signature(function, options)
        self._takes_mask = "mask" in flags.parameters_of(function)
        flags.check_all_found(options, self._flags, "the function")

    def _keywords(self, inputs: CallInputs, training: bool) -> dict[str, Any]:
        return keywords(self._flags, self._options, inputs, training, self._takes_mask)

    def init(self, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        made = self._init(key, *inputs.args, **self._keywords(inputs, training))
        return made if self._has_state else (made, {})

    def apply(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        words = self._keywords(inputs, training)
        if self._has_state:
            return self._apply(params, state, key, *inputs.args, **words)
        return self._apply(params, key, *inputs.args, **words), state


def _of_class(cls: type, options: ModuleOptions) -> tuple[Any, Any, Callable[..., Any]]:
    method = named_method(cls, options.method)
    build = functools.partial(cls, *options.args, **options.kwargs)
    transformed = hk.transform_with_state(lambda *args, **kwargs: method(build(), *args, **kwargs))
    return transformed.init, transformed.apply, method


def _chosen(apply: Any, method: Any) -> Callable[..., Any]:
    """Returns the `apply` that `method` names among those of a multi-transformed function."""
    if callable(apply):
        if method is not None:
            raise SignatureError("`method` chooses an `apply` of `hk.multi_transform`; this function has one only.")
        return apply
    if isinstance(method, str) and hasattr(apply, method):
        return getattr(apply, method)
    try:
        return apply[method]
    except (KeyError, IndexError, TypeError) as error:
        names = getattr(apply, "_fields", None) or (list(apply) if isinstance(apply, dict) else range(len(apply)))
        raise SignatureError(
            f"`method` must choose one of the functions of `hk.multi_transform`, got {method!r}; there are "
            f"{', '.join(map(repr, names))}."
        ) from error


def _check_streams(names: tuple[str, ...] | None) -> None:
    unknown = [name for name in names or () if name != STREAM]
    if unknown:
        raise SignatureError(f"`rngs` names '{unknown[0]}'; haiku has one stream, '{STREAM}'.")


def _start(variables: Any, has_state: bool) -> tuple[Any, Any]:
    if not has_state:
        return variables, {}
    if isinstance(variables, tuple) and len(variables) == 2:
        return variables
    raise SignatureError("`variables` of a function with state must be the pair (params, state) that `init` returns.")


def _resolved(model: PureModel, params: Any, state: Any, inputs: CallInputs) -> PureModel:
    """Returns the model with its stream, if a training call reads the key."""
    draws = reads_key(model.apply, params, state, inputs)
    return dataclasses.replace(model, rng_streams=(STREAM,) if draws else (), resolve=None)
