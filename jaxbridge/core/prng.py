"""How Keras seeds become JAX keys: one rule, the same numbers on every backend.

Draw number n of a layer whose seed is s is handed over as the raw Keras seed state `[s, n]`, and the key is made inside
the JAX function: `fold_in(key(s), n)`. A stream named N folds in `crc32(N)`. Initialisation uses `n = crc32("init")`, so
that it never touches the counter of the calls. Where several replicas run the layer, each folds in its index last.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbridge.errors import SignatureError

#: The implementation of the keys. Raw keys are uint32[2] by Keras' contract, which is what threefry has.
KEY_IMPL = "threefry2x32"


def stream_number(name: str) -> int:
    """Returns the number that stands for a stream's name: its CRC-32, below 2**32."""
    return zlib.crc32(name.encode())


def check_seed(seed: int | None) -> int | None:
    """Returns `seed` if JAX and TensorFlow agree on what it means; a SignatureError says what to write."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise SignatureError(f"`seed` must be an integer or None, got {seed!r} of type {type(seed).__name__}.")
    if not 0 <= seed < 2**32:
        raise SignatureError(
            f"`seed` must be at least 0 and below 2**32, got {seed}: JAX keys are made of 32-bit words. "
            f"Write for instance `seed={int(seed) % 2**32}`."
        )
    return int(seed)


def init_seed(seed: int, index: int = 0) -> np.ndarray:
    """Returns the uint32[2] seed of the `index`-th key that initialisation asks for."""
    return np.array([seed, stream_number("init" if index == 0 else f"init/{index}")], np.uint32)


def key_from_seed(seed: Any) -> jax.Array:
    """Returns the typed key of a seed state `[s, n]` (any integer dtype): `fold_in(key(s), n)`.

    A third word, the index of a replica, is folded in after the second.
    """
    words = jnp.asarray(seed).astype(jnp.uint32)
    key = jax.random.key(words[0], impl=KEY_IMPL)
    for index in range(1, words.shape[0]):
        key = jax.random.fold_in(key, words[index])
    return key


def keys_from_seeds(seeds: Any) -> Any:
    """Returns `seeds` (a pytree whose leaves are seed states of shape [2], or None) with a typed key for each leaf."""
    return jax.tree.map(key_from_seed, seeds)


def stream_keys(key: Any, streams: tuple[str, ...]) -> dict[str, Any]:
    """Returns a key per stream. A dict of keys is taken to name its streams already."""
    if key is None:
        return {}
    if isinstance(key, dict):
        return dict(key)
    return {name: jax.random.fold_in(key, stream_number(name)) for name in streams}


def with_impl(keys: Any, impl: str | None) -> Any:
    """Returns `keys` (a pytree of typed keys, or None) as keys of another implementation; None leaves them.

    The key data of the new key is drawn from the old one, as many words as the implementation has.
    """
    if impl is None or impl == KEY_IMPL:
        return keys
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape

    def convert(key: Any) -> Any:
        return jax.random.wrap_key_data(jax.random.bits(key, words, jnp.uint32), impl=impl)

    return jax.tree.map(convert, keys)


def check_impl(impl: str | None) -> str | None:
    """Returns `impl` if JAX knows a key implementation of this name; a SignatureError names those that it has."""
    known = ("threefry2x32", "rbg", "unsafe_rbg")
    if impl is not None and impl not in known:
        raise SignatureError(f"`rng_impl` must be one of {', '.join(map(repr, known))} or None, got {impl!r}.")
    return impl


def is_typed_key(leaf: Any) -> bool:
    """Returns whether a leaf is an array of typed keys (also an abstract one)."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(leaf: Any) -> str:
    """Returns the name of the implementation of typed keys (also abstract ones), such as "rbg"."""
    found: list[str] = []
    jax.eval_shape(lambda key: found.append(str(jax.random.key_impl(key))), leaf)
    return found[0]


def raw_keys(keys: Any) -> Any:
    """Returns `keys` (a pytree of typed keys, or None) as raw keys, uint32[2] each."""
    return jax.tree.map(jax.random.key_data, keys)
