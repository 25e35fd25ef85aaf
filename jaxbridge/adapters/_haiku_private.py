"""What haiku does not say in public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def original_function(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that haiku transformed, whose signature shows its flags.

    `haiku.transform` returns functions of `(*args, **kwargs)`; the one inside is the attribute `_original_fn` (haiku 0.0.14
    to 0.0.17). Where it is missing the function itself is returned, and flags have to be named.
    `tests/adapters/test_private_apis.py` fails when this moves.
    """
    return getattr(apply, "_original_fn", apply)
