"""How often functions were traced, lowered and added to graphs, for tests and for finding out why something is slow."""

from __future__ import annotations

import collections
import dataclasses
import threading

from jaxbridge.core.programs import PROGRAMS


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts since the process started; the difference of two is what happened between them.

    Attributes:
        traces: how often a converted Python function was traced by JAX.
        lowerings: how many modules were lowered and serialised (a function, its residual form, its backward pass).
        emissions: how often an op that runs such a module was added to a graph or run eagerly.
        cache_hits: how often a conversion, or a function shared by equal layers, was there already.
        cache_misses: how often it had to be made.
    """

    traces: int = 0
    lowerings: int = 0
    emissions: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __sub__(self, earlier: Statistics) -> Statistics:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return Statistics(*(now - before for now, before in pairs))


_counts: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


def count(what: str) -> None:
    """Adds one to a field of `Statistics`."""
    with _lock:
        _counts[what] += 1


def stats() -> Statistics:
    """Returns how often functions were traced, lowered and added to graphs in this process.

    Example:
        >>> import tensorflow as tf, jax.numpy as jnp
        >>> from jaxbridge import jax2tf
        >>> f = jax2tf.convert(jnp.cos)
        >>> _ = f(tf.zeros((2,)))
        >>> before = jax2tf.stats()
        >>> _ = f(tf.ones((2,)))
        >>> (jax2tf.stats() - before).traces
        0
    """
    with _lock:
        counts = dict(_counts)
    counts["cache_hits"] = counts.get("cache_hits", 0) + PROGRAMS.hits
    counts["cache_misses"] = counts.get("cache_misses", 0) + PROGRAMS.misses
    return Statistics(**counts)
