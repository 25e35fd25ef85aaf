"""What the arguments of public functions must be, by their names: one table, read before anything is made."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax.export
import numpy as np

from jaxbridge.core.platforms import PLATFORMS
from jaxbridge.errors import SignatureError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Kind(NamedTuple):
    """What an argument may be.

    Attributes:
        said: how it is said behind "must be".
        accepts: whether a value is one.
    """

    said: str
    accepts: Callable[[Any], bool]


def or_none(kind: Kind) -> Kind:
    """Returns the kind that takes None too."""
    return Kind(f"{kind.said}, or None", lambda value: value is None or kind.accepts(value))


def one_of(*words: str) -> Kind:
    """Returns the kind of a few texts."""
    return Kind(f"one of {', '.join(map(repr, words))}", lambda value: isinstance(value, str) and value in words)


def whole_number(least: int) -> Kind:
    """Returns the kind of integers from `least` on."""
    return Kind(f"an integer of at least {least}", lambda value: _is_integer(value) and value >= least)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) or (_is_integer(value) and value in (0, 1))


def _is_number(value: Any) -> bool:
    return isinstance(value, float | np.floating) or _is_integer(value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _are_platforms(value: Any) -> bool:
    names = list(value) if _is_sequence(value) else []
    return bool(names) and all(name in PLATFORMS for name in names) and len(set(names)) == len(names)


def _are_streams(value: Any) -> bool:
    # Of a generator nothing would be left after the look.
    names = value if isinstance(value, Collection) and not isinstance(value, str | bytes) else [None]
    return all(isinstance(name, str) for name in names)


def _is_flag_of_a_module(value: Any) -> bool:
    return isinstance(value, str) or _has_text_keys(value)


def _has_text_keys(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _are_shape_texts(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_are_shape_texts, value.values()))
    if type(value).__name__ == "PolyShape":  # of `jax.experimental.jax2tf`: a tuple of sizes
        return True
    return value is None or isinstance(value, str) or (_is_sequence(value) and all(map(_are_shape_texts, value)))


FLAG = Kind("True or False", _is_flag)
TEXT = Kind("a text", lambda value: isinstance(value, str))
FUNCTION = Kind("a function", callable)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0)
TOLERANCE = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
MAPPING = Kind("a mapping such as {'name': value}", _has_text_keys)
PLATFORM_NAMES = Kind(f"a sequence out of {PLATFORMS}, with each platform once", _are_platforms)
PATH = Kind(
    "a path, a text or an `os.PathLike`",
    lambda value: isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str) and os.fspath(value) != "",
)

#: The argument of a name means the same in every public function, up to what a function gives `checked` itself.
EXPECTED: dict[str, Kind] = {
    "args": Kind("a sequence of the class's positional arguments, such as (64,)", _is_sequence),
    "batch_size": whole_number(1),
    "call_kwargs": or_none(MAPPING),
    "collections": or_none(
        Kind(
            "a mapping from a collection or a type of variable to what becomes of it, such as {'cache': 'state'}",
            lambda value: isinstance(value, Mapping) and all(isinstance(role, str) for role in value.values()),
        )
    ),
    "compute_output_shape_fn": or_none(Kind("a function of the input's shape", callable)),
    "enable_xla": or_none(FLAG),
    "export": FLAG,
    "fun_jax": FUNCTION,
    "gradient": FLAG,
    "gradient_order": whole_number(1),
    "kwargs": or_none(MAPPING),
    "layer": or_none(Kind("a text, the path of a layer", TEXT.accepts)),
    "layer_factory": Kind("a function without arguments that makes a layer", callable),
    "method": or_none(
        Kind(
            "the name of a method, or a function of the module", lambda value: isinstance(value, str) or callable(value)
        )
    ),
    "name": or_none(TEXT),
    # What maxima and minima do where TensorFlow compiles them: NaN where an operand is, or what its compiler has.
    "nan": one_of("keep", "fast"),
    "native_serialization": or_none(FLAG),
    "native_serialization_disabled_checks": Kind(
        "a sequence of `jax.export.DisabledSafetyCheck`s",
        lambda value: _is_sequence(value) and all(isinstance(v, jax.export.DisabledSafetyCheck) for v in value),
    ),
    # An empty one is None, by the contract of `jax.experimental.jax2tf`.
    "native_serialization_platforms": or_none(
        Kind(PLATFORM_NAMES.said, lambda value: value in ((), []) or _are_platforms(value))
    ),
    "path": PATH,
    "pattern": Kind("a text such as 'encoder/*'", TEXT.accepts),
    "platforms": or_none(PLATFORM_NAMES),
    "polymorphic_constraints": Kind(
        "a sequence of texts such as ('k >= 2',)",
        lambda value: _is_sequence(value) and all(isinstance(text, str) for text in value),
    ),
    "polymorphic_shapes": Kind(
        "None, a shape text such as '(b, 3)', or texts in the structure of the inputs", _are_shape_texts
    ),
    "rngs": or_none(
        Kind(
            "names of random streams such as ('dropout',), or a mapping from them such as {'dropout': 'always'}",
            _are_streams,
        )
    ),
    "rtol": TOLERANCE,
    "atol": TOLERANCE,
    "signature": Kind("a text, the name of a signature", TEXT.accepts),
    "source_info": FLAG,
    "stablehlo_version": or_none(Kind("a text such as '1.13.0' or 'tensorflow==2.18'", TEXT.accepts)),
    "target": or_none(Kind("a text such as 'tensorflow==2.18' or '1.13.0' (a StableHLO version)", TEXT.accepts)),
    "timeout": POSITIVE,
    "training": FLAG,
    "training_flag": or_none(
        Kind(
            "the name of the flag, or a mapping from names to pairs of values such as {'mode': ('train', 'eval')}",
            _is_flag_of_a_module,
        )
    ),
    "verify": FLAG,
    "vmap": FLAG,
    "with_gradient": FLAG,
}


def check(**arguments: Any) -> None:
    """Raises a SignatureError for the first argument that is not what `EXPECTED` says of its name."""
    for name, value in arguments.items():
        _check(name, value, EXPECTED[name])


def _check(name: str, value: Any, kind: Kind) -> None:
    if not kind.accepts(value):
        raise SignatureError(f"`{name}` must be {kind.said}; got {value!r:.200} of type {type(value).__name__}.")


def checked(more: Collection[str] = (), **own: Kind) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Returns a decorator: a function that looks at its arguments before it does anything.

    A value that is not what `EXPECTED` says of the argument's name, or a keyword that the function does not have, is a
    SignatureError that names it.

    Args:
        more: keywords that the function takes by its `**kwargs`; empty: none are looked at there.
        **own: kinds of arguments for this function alone.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        known = None if takes_any and not more else {*names, *more}
        kinds = {name: kind for name, kind in {**EXPECTED, **own}.items() if name in (known or names)}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in kwargs:
                if known is not None and name not in known:
                    raise SignatureError(_unknown(_title(function, args), name, known))
            for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
                if name in kinds:
                    _check(name, value, kinds[name])
            return function(*args, **kwargs)

        # Keras reads the arguments of `__init__` without following `__wrapped__`.
        run.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return run

    return decorate


def _title(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    return type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__


def _unknown(title: str, name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1)
    says = f"did you mean `{nearest[0]}`?" if nearest else f"it has {', '.join(f'`{n}`' for n in sorted(known))}."
    return f"`{title}` has no argument `{name}`; {says}"
