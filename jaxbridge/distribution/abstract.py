"""Variables without values."""

from __future__ import annotations

import contextlib
import contextvars
import random
from collections.abc import Iterator
from typing import Any

import keras

from jaxbridge.distribution import _keras_private
from jaxbridge.errors import LoweringError

_abstract: contextvars.ContextVar[bool] = contextvars.ContextVar("abstract", default=False)


@contextlib.contextmanager
def abstract_variables() -> Iterator[None]:
    """Returns a context in which Keras variables are made without values, and never get any.

    Keras' global seeds and the numbers in its automatic names are afterwards what they were, so that a model that is made
    here changes no later one: the same function gives the same names again.
    """
    waiting, names, seeds = (
        _keras_private.uninitialized_variables(),
        _keras_private.automatic_names(),
        random.getstate(),
    )
    token = _abstract.set(True)
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        _abstract.reset(token)
        _keras_private.forget_uninitialized_variables(waiting, _no_value)
        _keras_private.restore_automatic_names(names)
        random.setstate(seeds)


def values_are_wanted() -> bool:
    """Returns whether variables get values: not in `abstract_variables`, where Keras reads some while it traces a model."""
    return not _abstract.get()


def _no_value(*_: Any, **__: Any) -> Any:
    raise LoweringError(
        "This variable was made without a value. A function that is given to `jaxbridge.lower`, `jaxbridge.summary` or "
        "`autoshard` must make all the layers of its model, and not use ones that are used elsewhere."
    )
