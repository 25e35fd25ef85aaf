"""Floor 3: one file per Keras backend. Whoever needs a backend's way of doing something asks `current()`."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import keras
from jax import Array  # the name `jax` is that of the file beside this one

from jaxbridge.backends.base import Backend, Lowering
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


def of(tensor: Any) -> Backend:
    """Returns the backend whose tensor this is: that of JAX for its arrays, which JAX functions see on every backend."""
    return importlib.import_module(_FILES["jax"]).BACKEND if isinstance(tensor, Array) else current()


_lowering: contextvars.ContextVar[Lowering] = contextvars.ContextVar("lowering", default=Lowering())  # noqa: B039 (frozen)


@contextlib.contextmanager
def lowered_for(lowering: Lowering) -> Iterator[None]:
    """Returns a context in which every layer is lowered for this, whatever it was made with."""
    token = _lowering.set(lowering)
    try:
        yield
    finally:
        _lowering.reset(token)


def lowering_in_effect(own: Lowering) -> Lowering:
    """Returns what to lower for: that of the context, with a layer's own platforms and `nan` where it names none."""
    lowering = _lowering.get()
    return dataclasses.replace(lowering, platforms=lowering.platforms or own.platforms, nan=lowering.nan or own.nan)
