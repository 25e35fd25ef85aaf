"""FlaxLayer: flax modules as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras

from jaxbridge import adapters
from jaxbridge.errors import StructureError
from jaxbridge.layers.module_layer import ModuleLayer

#: The libraries whose modules a FlaxLayer takes.
_LIBRARIES = ("flax.linen", "flax.nnx")


@keras.saving.register_keras_serializable(package="jaxbridge")
class FlaxLayer(ModuleLayer):
    """A Keras layer that wraps a `flax.linen` or `flax.nnx` module, on Keras' JAX and TensorFlow backends.

    Takes the place of `keras.layers.FlaxLayer`. All arguments are those of `ModuleLayer`.

    A linen module's variables are found by their collection (`net/params/Dense_0/kernel`, `net/batch_stats/...`), an NNX
    module's as `net/params/...` (type `nnx.Param`) and `net/state/...` (all others). Of an NNX module `train()` and
    `eval()` follow the layer's `training`, so do attributes `training` and `is_training`, and its keys and counts are
    state. The module that is passed is not changed; the layer's variables are the ones that are trained.

    Args:
        module: an instance of `flax.linen.Module` or `flax.nnx.Module`; or such a class, with `args` and `kwargs`.
        *args: as those of `ModuleLayer`.
        **kwargs: as those of `ModuleLayer`.

    Raises:
        MissingDependencyError: flax is not installed.
        SignatureError: an option does not fit the module.
        StructureError: `module` is no flax module, or the state comes back in another structure, shape or dtype.
        ShapeError: a size breaks a declared shape or constraint.

    Example:
        >>> import flax.linen as nn, numpy as np
        >>> from flax import nnx
        >>> from jaxbridge import FlaxLayer
        >>> layer = FlaxLayer(nn.Dense(2), name="net")
        >>> layer(np.ones((3, 4), "float32")).shape[1], [w.path for w in layer.weights]
        (2, ['net/params/bias', 'net/params/kernel'])
        >>> layer = FlaxLayer(nnx.BatchNorm, args=(4,), name="norm")
        >>> layer(np.ones((3, 4), "float32")).shape[1], [w.path for w in layer.non_trainable_weights]
        (4, ['norm/state/mean', 'norm/state/var'])
    """

    def _find_adapter(self, module: Any) -> adapters.Adapter:
        adapters.load(_LIBRARIES[0])  # says what to install where flax is missing
        try:
            adapter = adapters.find_adapter(module)
        except StructureError:
            adapter = None
        if adapter is None or adapter.library not in _LIBRARIES:
            raise StructureError(
                "`module` must be an instance of flax.linen.Module or flax.nnx.Module, or such a class, got "
                f"{module!r} of type {type(module).__name__}. `jaxbridge.ModuleLayer` takes modules of other libraries."
            )
        return adapter
