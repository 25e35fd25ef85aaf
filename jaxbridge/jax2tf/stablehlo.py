"""Versions of StableHLO: what the installed JAX writes, what the installed TensorFlow reads, and the one to write."""

from __future__ import annotations

from jaxbridge.errors import ConversionError
from jaxbridge.jax2tf import _jax_private, _tf_private


def parse_version(version: str) -> tuple[int, ...]:
    """Returns "1.13.7" as (1, 13, 7)."""
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ConversionError(f"`stablehlo_version` must be written like '1.13.0', got {version!r}.")
    return tuple(int(part) for part in parts)


def target_version(version: str | None) -> str:
    """Returns the StableHLO version to write.

    Args:
        version: such as "1.13.0"; None for the newest one that both the installed JAX and the installed TensorFlow know.

    Raises:
        ConversionError: the installed JAX cannot write that version.
    """
    newest, oldest = _jax_private.written_version(), _jax_private.oldest_version()
    if version is None:
        return min(newest, _tf_private.read_version(), key=parse_version)
    if not parse_version(oldest) <= parse_version(version) <= parse_version(newest):
        raise ConversionError(
            f"The installed JAX writes StableHLO {oldest} to {newest}; `stablehlo_version={version!r}` is outside."
        )
    return version
