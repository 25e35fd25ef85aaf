"""What `distribution` needs of Keras and has no public name (tried with keras 3.15)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras


@contextlib.contextmanager
def with_values(values: Sequence[tuple[keras.Variable, Any]]) -> Iterator[None]:
    """Returns a context in which variables hold other values, which no layout spreads over devices.

    `assign` would spread them again by the variable's layout, and in a `keras.StatelessScope` no variable may be made,
    which saving does. `tests/distribution/test_processes.py` fails when this moves.
    """
    before = [(variable, variable._value, variable._layout) for variable, _ in values]
    try:
        for variable, value in values:
            variable._value, variable._layout = value, None
        yield
    finally:
        for variable, value, layout in before:
            variable._value, variable._layout = value, layout
