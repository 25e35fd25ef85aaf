"""Attributes that are made at their first use, once however many threads ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class made_once:
    """A property that is made at its first use by one thread, while others wait; what it raises is raised each time.

    `functools.cached_property` has one lock for all instances before Python 3.12, with which two functions that call each
    other could wait for ever, and none after.

    Args:
        make: the method; its object has a reentrant lock in the attribute `lock`.
    """

    def __init__(self, make: Callable[[Any], Any]):
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        with instance.lock:
            if self._name not in instance.__dict__:
                instance.__dict__[self._name] = self._make(instance)
            return instance.__dict__[self._name]
