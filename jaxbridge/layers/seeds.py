"""The generator of a layer's seeds, and the seeds of initialisation."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from jaxbridge.core import prng


class LayerSeedGenerator(keras.random.SeedGenerator):
    """Keras' seed generator, whose state stays concrete when it is made while a function is being traced.

    Keras initialises the variables of an unbuilt model inside the user's `jax.jit`; its own generator converts its seed
    there, and the tracer stays in the variable (keras 3.15).

    Args:
        seed: the seed, at least 0 and below 2**32.
        dtype: the dtype of the state.
    """

    def __init__(self, seed: int, dtype: str):
        # Not super().__init__: it makes the state.
        self.name = "seed_generator"
        self.backend = keras.ops
        self._initial_seed = seed
        start = keras.ops.convert_to_tensor(np.array([seed, 0], dtype))
        with keras.name_scope(self.name):
            self.state = keras.Variable(
                lambda shape, dtype=None: keras.ops.convert_to_tensor(start, dtype=dtype),
                shape=(2,),
                dtype=dtype,
                trainable=False,
                autocast=False,
                name="seed_generator_state",
            )

    def next(self, ordered: bool = True) -> Any:
        """Returns the state `[seed, n]` and moves on to n + 1."""
        assert ordered, "the draws of a layer are counted"
        value = self.state.value * 1  # a copy: on TensorFlow the variable's value is the variable
        self.state.assign(value + keras.ops.convert_to_tensor(np.array([0, 1], self.state.dtype)))
        return value


class InitSeeds:
    """Hands out the seeds of initialisation; they never touch the counter of the calls."""

    def __init__(self, seed: int):
        self.seed = seed
        self.count = 0

    def next(self) -> np.ndarray:
        """Returns the next seed, uint32[2]."""
        seed = prng.init_seed(self.seed, self.count)
        self.count += 1
        return seed
