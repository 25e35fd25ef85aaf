"""Arguments of `jax.experimental.jax2tf.convert` that leave no choice here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

#: Argument -> what happens whatever it says.
_SETTLED = {
    "native_serialization": "a function is one XlaCallModule op that holds StableHLO, never a graph of TensorFlow ops",
    "enable_xla": "the op that a function becomes is compiled by XLA, also in a graph without `jit_compile=True`",
}


def warn_of_settled(given: Mapping[str, bool | None]) -> None:
    """Warns of arguments that were given (not None), with what happens instead where they ask for something else."""
    for name, value in given.items():
        if value is None:
            continue
        if value:
            text, kind = f"`{name}={value}` says what is always so; leave it out.", DeprecationWarning
        else:
            text, kind = f"`{name}={value}` has no effect: {_SETTLED[name]}. Leave it out.", UserWarning
        warnings.warn(text, kind, stacklevel=4)  # the caller of `convert`, behind what checks the arguments
