"""What `stages` needs of Keras and has no public name (tried with keras 3.12 and 3.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras.src.backend.common import global_state

_UNINITIALIZED = "uninitialized_variables"


def uninitialized_variables() -> list[Any]:
    """Returns the variables whose values Keras will make at the end of the outermost scope.

    Keras keeps those of a `keras.StatelessScope(initialize_variables=False)` too, and the next scope of the process would
    make their values: 40 GB for ten billion parameters. `tests/stages/test_abstract.py` fails when this moves.
    """
    return list(global_state.get_global_attribute(_UNINITIALIZED) or [])


def forget_uninitialized_variables(waiting: list[Any], instead: Callable[..., Any]) -> None:
    """Gives up all uninitialized variables but `waiting`; who reads the value of one outside a scope gets `instead()`."""
    kept = {id(variable) for variable in waiting}
    for variable in uninitialized_variables():
        if id(variable) not in kept:
            variable._initializer = instead
    global_state.set_global_attribute(_UNINITIALIZED, list(waiting))
