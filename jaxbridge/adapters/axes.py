"""Names of axes that a module reduces over (`axis_name="batch"`), bound where nobody else binds them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def with_axes_bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, which sees every name of an axis that is not bound as one of size 1.

    A mean over such an axis is the value itself: the arrays of a Keras layer are whole ones, whatever devices they are split
    over. An axis that the caller has bound (`jax.vmap`, `jax.shard_map`) is left to him, so names are found anew whenever
    the function is traced: the first unbound one is an error of JAX, before anything else has happened.

    Args:
        function: a pure function that returns a pytree.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        names: tuple[str, ...] = ()
        while True:
            try:
                return _bound(function, names, args, kwargs)
            except NameError as error:
                name = unbound_axis(error)
                if name is None or name in names:
                    raise
                names += (name,)

    return run


def unbound_axis(error: Exception) -> str | None:
    """Returns the name of the axis that JAX's error says is not bound; None for another error."""
    found = (
        re.search(r"unbound axis name: (\w[^\s,]*?)\.?(?:\s|$)", str(error)) if isinstance(error, NameError) else None
    )
    return None if found is None else found[1]


def _bound(function: Callable[..., Any], names: tuple[str, ...], args: Any, kwargs: Any) -> Any:
    if not names:
        return function(*args, **kwargs)
    given = {id(leaf): leaf for leaf in jax.tree.leaves((args, kwargs))}
    rest: list[Any] = []  # what is returned as it was given, or is no array

    def inside() -> list[Any]:
        leaves, treedef = jax.tree.flatten(_bound(function, names[1:], args, kwargs))
        is_new = [isinstance(leaf, jax.Array) and id(leaf) not in given for leaf in leaves]
        rest[:] = [treedef, [None if new else leaf for new, leaf in zip(is_new, leaves, strict=True)], is_new]
        return [leaf for new, leaf in zip(is_new, leaves, strict=True) if new]

    # Nothing is mapped: only what comes from the axis itself (its index, what is gathered over it) has it.
    made = iter(jax.vmap(inside, axis_name=names[0], axis_size=1)())
    treedef, leaves, is_new = rest
    return jax.tree.unflatten(
        treedef, [jnp.squeeze(next(made), 0) if new else leaf for new, leaf in zip(is_new, leaves, strict=True)]
    )
