"""Floor 3: one file per Keras backend. Whoever needs a backend's way of doing something asks `current()`."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
from collections.abc import Iterator, Sequence

import keras

from jaxbridge.backends.base import Backend
from jaxbridge.errors import UnsupportedBackendError

_FILES = {"jax": "jaxbridge.backends.jax", "tensorflow": "jaxbridge.backends.tensorflow"}


def name() -> str:
    """Returns the name of the backend that Keras runs on."""
    return keras.config.backend()


@functools.cache
def current() -> Backend:
    """Returns the backend that Keras runs on.

    Raises:
        UnsupportedBackendError: it has no file here.
        MissingDependencyError: TensorFlow is not installed.
    """
    name = keras.config.backend()
    if name not in _FILES:
        raise UnsupportedBackendError(
            f"jaxbridge layers run on the Keras backends {', '.join(_FILES)}; the backend in use is '{name}'. "
            "Set the environment variable KERAS_BACKEND before keras is imported."
        )
    return importlib.import_module(_FILES[name]).BACKEND


_platforms: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar("platforms", default=None)


@contextlib.contextmanager
def platforms(names: Sequence[str]) -> Iterator[None]:
    """Returns a context in which every layer is lowered for these platforms, whatever it was made with."""
    token = _platforms.set(tuple(names))
    try:
        yield
    finally:
        _platforms.reset(token)


def platforms_in_effect(own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Returns the platforms to lower for: those of the context, else `own`."""
    return _platforms.get() or own
