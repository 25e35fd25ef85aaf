"""Our `convert` in the place of `jax.experimental.jax2tf.convert`, for libraries that call that one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from jaxbridge.jax2tf.convert import convert
from jaxbridge.jax2tf.platforms import default_platforms

_installed: list[Any] = []


def install() -> None:
    """Puts jaxbridge's `convert` under `jax.experimental.jax2tf.convert`, for the whole process.

    Keras' exporter on its JAX backend, orbax-export and other libraries then write SavedModels that the installed
    TensorFlow reads; where they name no platforms, for the one that it sees and for "cpu". Never done on import;
    `uninstall` takes it away again. Calling it twice is the same as once.

    Example:
        >>> from jaxbridge import jax2tf
        >>> jax2tf.install()
        >>> jax2tf.uninstall()
    """
    from jax.experimental import jax2tf

    if not _installed:
        _installed.append(jax2tf.convert)
        jax2tf.convert = _as_jax2tf(jax2tf.convert)


def uninstall() -> None:
    """Puts `jax.experimental.jax2tf.convert` back. Does nothing where `install` was not called."""
    from jax.experimental import jax2tf

    if _installed:
        jax2tf.convert = _installed.pop()


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Returns a context in which `jax.experimental.jax2tf.convert` is jaxbridge's; see `install`.

    Example:
        >>> from jaxbridge import jax2tf
        >>> with jax2tf.patch():
        ...     pass  # model.export("path")  on Keras' JAX backend
    """
    was_installed = bool(_installed)
    install()
    try:
        yield
    finally:
        if not was_installed:
            uninstall()


def _as_jax2tf(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `convert` with other platforms by default."""

    @functools.wraps(original)
    def patched(fun_jax: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
        # jax2tf takes JAX's default backend alone, so that a file written on a machine with a GPU runs on GPUs only.
        kwargs["native_serialization_platforms"] = kwargs.get("native_serialization_platforms") or default_platforms()
        return convert(fun_jax, **kwargs)

    return patched
