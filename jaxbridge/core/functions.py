"""The `call_fn`/`init_fn` contract of `keras.layers.JaxLayer`, by argument name, made into a PureModel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxbridge.core import prng
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.errors import SignatureError, StructureError

CALL_ARGUMENTS = ("params", "state", "rng", "inputs", "training", "mask")
INIT_ARGUMENTS = ("rng", "inputs", "training")


class NamedFunction:
    """A function whose arguments are filled in by name, in whatever order it takes them.

    Args:
        fn: a function, `functools.partial`, bound method or callable object.
        label: how messages call it.
        allowed: the argument names that are understood.
        required: those that must be there.

    Raises:
        SignatureError: an argument is not understood or a required one is missing.
    """

    def __init__(self, fn: Callable[..., Any], label: str, allowed: tuple[str, ...], required: tuple[str, ...]):
        if not callable(fn):
            raise SignatureError(f"`{label}` must be a function, got {fn!r} of type {type(fn).__name__}.")
        self.fn = fn
        self.label = label
        parameters = inspect.signature(fn).parameters
        fixed = _fixed_by_partial(fn)
        unknown = [name for name in parameters if name not in allowed and name not in fixed]
        if unknown:
            # One that is not understood, and no `inputs`, is the inputs under another name.
            is_inputs = "inputs" in required and "inputs" not in parameters and len(unknown) == 1
            raise SignatureError(
                f"Unsupported argument in `{label}`: `{unknown[0]}`, supported arguments are {_listed(allowed)}. "
                + (
                    f"Arguments are given by name: call this one `inputs`, or pass `lambda inputs: {label}(inputs)`."
                    if is_inputs
                    else f"Fix other arguments beforehand: `functools.partial({label}, {unknown[0]}=...)`."
                )
            )
        missing = [name for name in required if name not in parameters or name in fixed]
        if missing:
            raise SignatureError(
                f"Missing required argument in `{label}`: `{missing[0]}`. "
                f"It takes {_listed(tuple(parameters)) or 'no argument'}; supported arguments are {_listed(allowed)}."
            )
        taken = [parameter for parameter in parameters.values() if parameter.name not in fixed]
        self.positional = tuple(p.name for p in taken if p.kind is not inspect.Parameter.KEYWORD_ONLY)
        self.by_name = tuple(p.name for p in taken if p.kind is inspect.Parameter.KEYWORD_ONLY)
        self.names = frozenset(self.positional + self.by_name)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Calls the function with those of `values` that it takes."""
        return self.fn(*(values[name] for name in self.positional), **{name: values[name] for name in self.by_name})


def from_functions(
    call_fn: Callable[..., Any], init_fn: Callable[..., Any] | None = None, typed_keys: bool = False
) -> tuple[PureModel, tuple[str, ...]]:
    """Makes a PureModel of two functions whose arguments are given by name; also says which of params and state it has.

    Args:
        call_fn: takes any of `params`, `state`, `rng` (a raw uint32[2] key or None), `inputs` (required), `training`
            (bool) and `mask`; returns the outputs, and with `state` the pair of outputs and new state.
        init_fn: takes any of `rng`, `inputs` and `training`; returns params, or the pair of params and state if
            `call_fn` takes `state`. None where nothing is to be initialised.
        typed_keys: whether `rng` is a typed key.

    Raises:
        SignatureError: an argument is not understood or `inputs` is missing.
    """
    call = NamedFunction(call_fn, "call_fn", CALL_ARGUMENTS, ("inputs",))
    start = None if init_fn is None else NamedFunction(init_fn, "init_fn", INIT_ARGUMENTS, ("inputs",))
    has_state = "state" in call.names
    as_asked = (lambda key: key) if typed_keys else prng.raw_keys

    def apply(params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        result = call(
            {
                "params": params,
                "state": state,
                "rng": as_asked(key),
                "inputs": single_input(inputs),
                "training": training,
                "mask": inputs.mask,
            }
        )
        return _pair(result, "call_fn", "the outputs and the new state") if has_state else (result, state)

    def init(key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        assert start is not None
        result = start({"rng": as_asked(key), "inputs": single_input(inputs), "training": training})
        return _pair(result, "init_fn", "the initial params and the initial state") if has_state else (result, None)

    model = PureModel(
        init=None if start is None else init,
        apply=apply,
        rng_streams=("rng",) if "rng" in call.names else (),
        uses_mask="mask" in call.names,
        identity=(call_fn, init_fn, typed_keys),
    )
    return model, tuple(name for name in ("params", "state") if name in call.names)


def single_input(inputs: CallInputs) -> Any:
    """Returns what `inputs` means for a function with one argument: several positional inputs are a tuple."""
    if inputs.kwargs:
        if inputs.args:
            raise SignatureError(
                f"`call_fn` has one argument, `inputs`, and the layer was called with positional inputs and with "
                f"{_listed(tuple(inputs.kwargs))} by name. Call it with one dict or tuple."
            )
        return dict(inputs.kwargs)
    return inputs.args[0] if len(inputs.args) == 1 else inputs.args


def _fixed_by_partial(fn: Any) -> frozenset[str]:
    """Returns the names of the arguments that `functools.partial` has bound by keyword, under `jax.jit` too."""
    fixed: set[str] = set()
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        if isinstance(fn, functools.partial):
            fixed.update(fn.keywords)
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    return frozenset(fixed)


def _pair(result: Any, label: str, what: str) -> tuple[Any, Any]:
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise StructureError(
        f"`call_fn` takes `state`, so `{label}` must return a tuple of two: {what}. It returned "
        f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple | list) else ''}."
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
