"""Whether a model reads its key, found by tracing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxbridge.core.jaxprs import depends_on


def reads_key(apply: Callable[..., Any], params: Any, state: Any, inputs: Any) -> bool:
    """Returns whether a training call's outputs or state depend on the key, for abstract arguments."""

    def run(words: Any, params: Any, state: Any, inputs: Any) -> Any:
        return apply(params, state, jax.random.wrap_key_data(words, impl="threefry2x32"), inputs, True)

    words = jax.ShapeDtypeStruct((2,), "uint32")
    jaxpr = jax.make_jaxpr(run)(words, params, state, inputs)
    return bool(depends_on(jaxpr.jaxpr, {0}))
