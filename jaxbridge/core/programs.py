"""Functions that equal layers share, each with what was made of it: traces, compilations, conversions."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax

from jaxbridge.core._jax_private import trace_context

#: How many programs are kept after the last layer that used them is gone, so that a rebuilt model can reuse them.
KEPT = 64
#: How many things made of one program are kept (one per structure, dtypes, declared shapes and settings of JAX).
MADE_KEPT = 64


class _Offer(NamedTuple):
    fn: Callable[..., Any]
    is_current: Callable[[], bool]


class _Offers:
    """Functions that compute the same, by their owners."""

    def __init__(self):
        self._by_owner: weakref.WeakKeyDictionary[Any, _Offer] = weakref.WeakKeyDictionary()
        self._last: _Offer | None = None
        self._lock = threading.Lock()

    def add(self, owner: Any, offer: _Offer) -> None:
        with self._lock:
            self._last = self._by_owner[owner] = offer

    def current(self) -> Callable[..., Any]:
        """Returns a function that is what all of them were; where all have changed, the last."""
        last = self._last
        assert last is not None
        with self._lock:
            offers = [last, *self._by_owner.values()]
        return next((offer for offer in offers if offer.is_current()), last).fn


class Program:
    """Pure functions that compute the same, as one, and everything that was made of it.

    What is made of a function holds the function, so it must not be in a table beside it: hanging on this object, both
    go together.

    Attributes:
        fn: runs one of the functions. One object, as JAX keeps what it traced by the function's identity.
        is_shared: whether a `ProgramCache` hands it out again.
    """

    def __init__(self, is_shared: bool = False):
        self.is_shared = is_shared
        self._offers = offers = _Offers()
        self._made: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._lock = threading.RLock()

        def fn(*args: Any) -> Any:
            return offers.current()(*args)

        self.fn = fn

    def offer(self, owner: Any, fn: Callable[..., Any], is_current: Callable[[], bool] = lambda: True) -> None:
        """Adds a function.

        Args:
            owner: whose function it is; it is offered while the owner lives. Neither `fn` nor `is_current` may hold it.
            fn: the function.
            is_current: returns whether it still computes what it did when the program's key was made: what it closes over
                may have been changed since.
        """
        self._offers.add(owner, _Offer(fn, is_current))

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

    def get(self, key: Hashable | None) -> Program:
        """Returns the program of a key. None is no key: the program is not shared."""
        if key is None:
            return Program()
        with self._lock:
            program = self._alive.get(key)
            self.hits, self.misses = self.hits + (program is not None), self.misses + (program is None)
            if program is None:
                program = self._alive[key] = Program(is_shared=True)
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
