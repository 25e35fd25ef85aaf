"""NNX modules inside linen modules (`nnx.bridge.to_linen`), which do not hear of the mode."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from jaxbridge._optional import require
from jaxbridge.errors import StructureError

require("flax.linen", "A flax.linen module")

from flax import linen, nnx  # noqa: E402

_found: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("found", default=None)


def in_mode(training: bool) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which NNX modules inside linen modules are called in this mode."""
    return linen.intercept_methods(functools.partial(_with_mode, training))


@contextlib.contextmanager
def wraps_nnx() -> Iterator[list[Any]]:
    """Returns a context whose list has the NNX modules inside linen modules that were called."""
    token = _found.set(found := [])
    try:
        yield found
    finally:
        _found.reset(token)


def _with_mode(training: bool, call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a method of a module. ToLinen makes the NNX module anew at every call (flax 0.12), in the mode of training."""
    if not isinstance(context.module, nnx.bridge.ToLinen) or context.method_name != "__call__":
        return call(*args, **kwargs)
    if "nnx_method" not in inspect.signature(type(context.module).__call__).parameters:
        raise StructureError(
            "This version of flax has no way to call an NNX module inside a linen module in the mode of the layer. Give the "
            "layer the NNX module itself."
        )
    if (found := _found.get()) is not None:
        found.append(context.module)
    method = kwargs.pop("nnx_method", None) or "__call__"

    def in_its_mode(module: Any, *args: Any, **kwargs: Any) -> Any:
        (module.train if training else module.eval)()
        chosen = getattr(type(module), method) if isinstance(method, str) else method
        return chosen(module, *args, **kwargs)

    return call(*args, nnx_method=in_its_mode, **kwargs)
