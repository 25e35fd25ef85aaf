"""dm-haiku's transformed functions and modules as PureModels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from jaxbridge._optional import require
from jaxbridge.adapters import flags
from jaxbridge.adapters._haiku_private import original_function
from jaxbridge.adapters.axes import with_axes_bound
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, named_method
from jaxbridge.adapters.calls import MethodCall, fill_keys
from jaxbridge.adapters.draws import with_found_streams
from jaxbridge.core import prng
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
        said = options.streams()
        _check_streams(said.named)
        # That of `hk.without_apply_rng` takes no key.
        takes_rng = "rng" in flags.parameters_of(apply)
        of_apply = 1 + has_state + takes_rng  # arguments before the inputs
        leading = 1 if isinstance(module, type) else of_apply if function is apply else 0
        call = MethodCall(function, options, flags.of_signature(function, options), leading)
        flags.check_all_found(options, call.flags, "the function")
        model = _HaikuModel(init, apply, call, has_state, takes_rng)
        fixed = PureModel(
            model.init,
            model.apply,
            (STREAM,),
            said.always,
            call.takes_mask,
            identity=("haiku", module, options.without_start()),
        )
        start = (None, None) if options.variables is None else _start(options.variables, has_state)
        resolve = functools.partial(with_found_streams, fixed, (STREAM,), said)
        return Adapted(dataclasses.replace(fixed, resolve=resolve), start)


class _HaikuModel:
    def __init__(self, init: Any, apply: Any, call: MethodCall, has_state: bool, takes_rng: bool):
        self._init, self._apply, self._call = init, apply, call
        self._has_state, self._takes_rng = has_state, takes_rng

    def _keywords(self, key: Any, inputs: CallInputs, training: bool) -> dict[str, Any]:
        names = self._call.key_arguments(inputs)
        return {**self._call.keywords(inputs, training), **fill_keys(names, prng.stream_keys(key, names))}

    def init(self, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        words = self._keywords(key, inputs, training)
        made = with_axes_bound(self._init)(key, *inputs.args, **words)
        return made if self._has_state else (made, {})

    def apply(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        values = (params, state) if self._has_state else (params,)
        args = (*values, key, *inputs.args) if self._takes_rng else (*values, *inputs.args)
        result = with_axes_bound(self._apply)(*args, **self._keywords(key, inputs, training))
        return result if self._has_state else (result, state)


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
