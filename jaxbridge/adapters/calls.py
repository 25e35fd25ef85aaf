"""What fills the arguments of a module's method besides the layer's inputs: flags, keys, the mask, fixed values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxbridge.adapters import flags
from jaxbridge.adapters.base import ModuleOptions
from jaxbridge.core.pure_model import CallInputs
from jaxbridge.errors import SignatureError

#: A parameter of such a name that must be given, and that the call does not give, is a key; also any that ends in `_rng`.
_KEYS = ("rng", "rngs", "key", "rng_key", "prng_key")


class MethodCall:
    """A call of a module's method.

    Args:
        method: the function whose parameters are filled.
        options: what the user says.
        found: the flags among its parameters.
        leading: how many of its first parameters are the module, or what else comes before the inputs.
        ignored: parameters that the adapter itself fills.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        options: ModuleOptions,
        found: flags.Flags,
        leading: int = 1,
        ignored: tuple[str, ...] = (),
    ):
        self.flags = found
        self._method, self._options, self._ignored = method, options, ignored
        parameters = flags.parameters_of(method)
        self.mask = parameters.get("mask")
        try:
            self._signature = inspect.signature(method)
        except (TypeError, ValueError):  # built-in functions have none
            self._signature = None
        self._leading = (None,) * leading

    @property
    def takes_mask(self) -> bool:
        return self.mask is not None

    def keywords(self, inputs: CallInputs, training: bool) -> dict[str, Any]:
        """Returns the keyword arguments but keys: the mask, flags, then what is fixed, then what the call itself gives."""
        words = {name: pair[0 if training else 1] for name, pair in self.flags.items()}
        if self.mask is not None and (inputs.mask is not None or self.mask.default is inspect.Parameter.empty):
            words["mask"] = inputs.mask
        by_position = self._bound(inputs.args, {}) or ()
        words = {name: word for name, word in words.items() if name not in by_position}
        return {**words, **self._options.call_kwargs, **inputs.kwargs}

    def _bound(self, args: tuple[Any, ...], words: dict[str, Any]) -> Mapping[str, Any] | None:
        """Returns the arguments of these values by name; None where they do not fit, of which Python's error says more."""
        if self._signature is None:
            return None
        try:
            return self._signature.bind_partial(*self._leading, *args, **words).arguments
        except TypeError:
            return None

    def key_arguments(self, inputs: CallInputs) -> tuple[str, ...]:
        """Returns the names of the arguments that are keys: those that `rngs` says are, and required ones that are called so.

        Raises:
            SignatureError: another argument is required and nothing fills it.
        """
        words = {**self.keywords(inputs, True), **dict.fromkeys(self._ignored)}
        known = {name: word for name, word in words.items() if self._signature and name in self._signature.parameters}
        given = self._bound(inputs.args, known)
        if given is None or self._signature is None:
            return ()
        said = self._options.streams().arguments
        free = {name: p for name, p in self._signature.parameters.items() if name not in given}
        required = [name for name, p in free.items() if p.default is p.empty and p.kind not in _VARIABLE]
        found = [name for name in required if name not in said and self._is_key(name)]
        missing = [name for name in required if name not in said and name not in found]
        if missing:
            raise self._missing(missing, inputs)
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in free.values())
        for name in said:
            if name not in self._signature.parameters and not takes_any:
                raise SignatureError(
                    f"`rngs` says that '{name}' is an argument, and {self._name} has none of this name; it takes "
                    f"{', '.join(self._signature.parameters)}."
                )
        return (*(name for name in said if name not in words), *found)

    def _is_key(self, name: str) -> bool:
        # Beside a query a key is no random one.
        is_random = name != "key" or not {"query", "value"} & set(self._signature.parameters if self._signature else ())
        return is_random and (name in _KEYS or name.endswith("_rng"))

    @property
    def _name(self) -> str:
        return getattr(self._method, "__qualname__", repr(self._method))

    def _missing(self, names: list[str], inputs: CallInputs) -> SignatureError:
        name = names[0]
        listed = len(inputs.args) == 1 and isinstance(inputs.args[0], list | tuple)
        how = (
            "The list of inputs is one argument: write `layer(a, b)` where you wrote `layer([a, b])`."
            if listed
            else f"If it is an input, pass it to the layer, by position or by name: `layer(x, {name}=...)`."
        )
        return SignatureError(
            f"{self._name} must be given `{name}`, and nothing fills it. {how} If it follows the mode: "
            f"`training_flag='{name}'`, or `training_flag={{'{name}': (its value in training mode, at inference)}}`. If it "
            f"is fixed: `call_kwargs={{'{name}': ...}}`. If it is a random key: `rngs={{'{name}': 'argument'}}`."
        )


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def fill_keys(names: tuple[str, ...], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a key for each of these arguments: a fixed one where nothing is drawn, and so nothing reads it."""
    return {name: keys[name] if name in keys else jax.random.key(0) for name in names}
