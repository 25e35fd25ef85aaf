"""What `core` needs of JAX and has no public name (tried with jax 0.7, 0.10 and 0.12)."""

from __future__ import annotations

from collections.abc import Hashable

import jax
from jax._src import config as _config
from jaxlib.mlir.dialects import stablehlo as _stablehlo


def trace_context() -> Hashable:
    """Returns the settings of JAX that a trace depends on (x64, matmul precision, PRNG, mesh ...), as `jax.jit` keys by them.

    The settings have public names; that these are all that matter for a trace has none. `tests/core/test_programs.py`
    fails when this moves.
    """
    # Which PRNG `jax.random.key` makes is not part of what jit keys by.
    return _config.trace_context(), jax.config.jax_default_prng_impl


def written_version() -> str:
    """Returns the newest StableHLO version that the installed JAX can write."""
    return _stablehlo.get_current_version()


def oldest_version() -> str:
    """Returns the oldest StableHLO version that the installed JAX can write."""
    return _stablehlo.get_minimum_version()
