"""Functions that equal layers share, each with what was made of it: traces, compilations, conversions."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

#: How many programs are kept after the last layer that used them is gone, so that a rebuilt model can reuse them.
KEPT = 64


class Program:
    """A pure function and everything that was made of it.

    What is made of the function holds the function, so it must not be in a table beside it: hanging on this object, both
    go together.
    """

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns what `make()` gave the first time that it was asked for under this key and this config of JAX."""
        key = (key, config_in_effect())
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
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
                program = self._alive[key] = Program(make())
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

#: Settings of JAX that change what a trace gives.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
)


def config_in_effect() -> Hashable:
    """Returns the settings of JAX, and its mesh, under which a function would be traced now."""
    return tuple(getattr(jax.config, name, None) for name in _SETTINGS), jax.sharding.get_abstract_mesh()
