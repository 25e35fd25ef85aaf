"""What of Keras has no public name. Seen in Keras 3.12 to 3.15; tests/distribution/test_private_apis.py."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from keras.src.backend.common import global_state

_UNINITIALIZED = "uninitialized_variables"
_NAMES = "object_name_uids"


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


def assigned_layout(variable: keras.Variable) -> Any:
    """Returns the layout that a variable's values are put in: a `TensorLayout`, a layout of the backend, or None.

    The value's own sharding is no substitute: there is no value before a deferred initialisation and while a step is
    traced. Optimizers read the same attribute for their slots.
    """
    return getattr(variable, "_layout", None)


def assign_layout(variable: keras.Variable, layout: Any) -> None:
    """Sets the layout of a variable that exists; its value, if it has one, is moved there."""
    variable._layout = layout
    if variable._value is not None:
        variable._direct_assign(variable._value)


def layout_map_of(distribution: Any) -> keras.distribution.LayoutMap | None:
    """Returns the LayoutMap of a distribution. `get_tensor_layout` is public and looks up in it, but names no key."""
    return getattr(distribution, "_layout_map", None)


class PlacedVariable(keras.Variable):
    """A variable whose initializer returns a value that is in its layout already.

    Keras traces the initializer of a large variable (250 MB over the mesh, keras 3.15) under `jit(out_shardings=...)`,
    where a value that exists becomes a constant of the program, whole on every device; functions it does not take there.
    """

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._initialize(initializer(self.shape, dtype=self.dtype))


def uninitialized_variables() -> list[Any]:
    """Returns the variables whose values Keras will make at the end of the outermost scope.

    Keras keeps those of a `keras.StatelessScope(initialize_variables=False)` too, and the next scope of the process would
    make their values: 40 GB for ten billion parameters. `tests/stages/test_models.py` fails when this moves.
    """
    return list(global_state.get_global_attribute(_UNINITIALIZED) or [])


def forget_uninitialized_variables(waiting: list[Any], instead: Callable[..., Any]) -> None:
    """Gives up all uninitialized variables but `waiting`; who reads the value of one outside a scope gets `instead()`."""
    kept = {id(variable) for variable in waiting}
    for variable in uninitialized_variables():
        if id(variable) not in kept:
            variable._initializer = instead
    global_state.set_global_attribute(_UNINITIALIZED, list(waiting))


def automatic_names() -> dict[str, int]:
    """Returns how many objects had each name that Keras gives by itself: the next one gets that number.

    Only `keras.utils.clear_session` is public, which forgets all of them. `tests/stages/test_models.py` fails when this
    moves.
    """
    return dict(global_state.get_global_attribute(_NAMES) or {})


def restore_automatic_names(names: Mapping[str, int]) -> None:
    """Lets Keras number its names from these again."""
    global_state.set_global_attribute(_NAMES, collections.defaultdict(int, names))
