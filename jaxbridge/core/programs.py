"""Functions that equal layers share, each with what was made of it: traces, compilations, conversions."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from jaxbridge.core._jax_private import trace_context

#: How many programs are kept after the last layer that used them is gone, so that a rebuilt model can reuse them.
KEPT = 64
#: How many things made of one program are kept (one per structure, dtypes, declared shapes and settings of JAX).
MADE_KEPT = 64


class Program:
    """A pure function and everything that was made of it.

    What is made of the function holds the function, so it must not be in a table beside it: hanging on this object, both
    go together.

    Attributes:
        fn: the function.
        is_shared: whether a `ProgramCache` hands it out again.
    """

    def __init__(self, fn: Callable[..., Any], is_shared: bool = False):
        self.fn = fn
        self.is_shared = is_shared
        self._made: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._lock = threading.RLock()

    @property
    def jitted(self) -> Callable[..., Any]:
        """The function under `jax.jit`, which traces and lowers it once wherever it is called inside other functions."""
        return self.once("jitted", lambda: jax.jit(self.fn))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns what `make()` gave the first time that it was asked for under this key and this config of JAX."""
        key = (key, trace_context())
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                if len(self._made) > MADE_KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]


class ProgramCache:
    """Programs by key: alive as long as a layer uses them, and the last `kept` a while longer."""

    def __init__(self, kept: int = KEPT):
        self._kept = kept
        self._alive: weakref.WeakValueDictionary[Hashable, Program] = weakref.WeakValueDictionary()
        self._recent: collections.OrderedDict[Hashable, Program] = collections.OrderedDict()
        self._lock = threading.RLock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable | None, make: Callable[[], Callable[..., Any]]) -> Program:
        """Returns the program of a key, made of `make()` if there is none. None is no key: the program is not shared."""
        if key is None:
            return Program(make())
        with self._lock:
            program = self._alive.get(key)
            self.hits, self.misses = self.hits + (program is not None), self.misses + (program is None)
            if program is None:
                program = self._alive[key] = Program(make(), is_shared=True)
            self._recent[key] = program
            self._recent.move_to_end(key)
            while len(self._recent) > self._kept:
                self._recent.popitem(last=False)
            return program

    def clear(self) -> None:
        """Forgets all programs; layers keep those they use."""
        with self._lock:
            self._alive.clear()
            self._recent.clear()


PROGRAMS = ProgramCache()
