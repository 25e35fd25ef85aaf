"""Compilation of code that runs once, where compiling takes longer than running."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def compiled_for_one_run(fn: Callable[..., Any], args: tuple[Any, ...], out_shardings: Any = None) -> Any:
    """Returns a function compiled for arguments of these shapes and dtypes, by a compiler that optimises little.

    It is traced and compiled by itself wherever it is asked for, also while another function is being traced. On CPU the
    values are those of the usual compilation to the last bit, in about a third of its time (initialisation of a ResNet:
    9.5 s and 3.4 s); other platforms compile as usual.
    """
    lowered = jax.jit(fn, out_shardings=out_shardings).lower(*args)
    return lowered.compile(compiler_options=_options(jax.default_backend()))


@functools.cache
def _options(platform: str) -> dict[str, Any] | None:
    """Returns the options that this platform's compiler knows, asked once per process."""
    if platform != "cpu":
        return None
    # Level 0 takes two thirds of the time of level 1 and differs by 2e-7.
    options: dict[str, Any] = {"xla_backend_optimization_level": 1}
    try:
        jax.jit(lambda x: x).lower(0).compile(compiler_options=options)
    except (RuntimeError, ValueError):  # "No such compile option": options of XLA have no promise to stay
        return None
    return options
