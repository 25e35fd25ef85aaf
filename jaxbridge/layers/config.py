"""Parts of a layer's config that JSON has no words for: inputs without values, pytrees of arrays without values."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from jaxbridge.core.pure_model import CallInputs
from jaxbridge.core.shapes import Signature
from jaxbridge.errors import StructureError
from jaxbridge.layers.calling import InputStructure


def pack_inputs(structure: InputStructure, signature: Signature) -> Any:
    """Returns the inputs that a layer was built for, for its build config."""
    tensors = [keras.KerasTensor(s, d) for s, d in zip(signature.keras_shapes(), signature.dtypes, strict=True)]
    inputs = structure.rebuild(tensors)
    return keras.saving.serialize_keras_object({"args": inputs.args, "kwargs": inputs.kwargs})


def unpack_inputs(config: dict[str, Any]) -> CallInputs:
    """Returns the inputs that `pack_inputs` wrote, as KerasTensors."""
    inputs = keras.saving.deserialize_keras_object(config)
    return CallInputs(tuple(inputs["args"]), dict(inputs["kwargs"]))


def pack_arrays(tree: Any, name: str) -> Any:
    """Returns structure, shapes and dtypes of a pytree of arrays (dicts, lists, tuples) for a config.

    Raises:
        StructureError: the pytree holds nodes that a config cannot name.
    """
    described = jax.tree.map(
        lambda leaf: keras.KerasTensor(np.shape(leaf), keras.backend.standardize_dtype(np.asarray(leaf).dtype)), tree
    )
    packed = keras.saving.serialize_keras_object(described)
    if jax.tree.structure(keras.saving.deserialize_keras_object(packed)) != jax.tree.structure(described):
        raise StructureError(
            f"A layer that was given `{name}` and has no `init_fn` can be saved if `{name}` is made of dicts, lists and "
            f"tuples; it has {jax.tree.structure(tree)}. Pass an `init_fn` that makes params of this structure."
        )
    return packed


def unpack_arrays(config: Any) -> Any:
    """Returns arrays in the place of those that `pack_arrays` described; NaN until weights are loaded into them."""
    described = keras.saving.deserialize_keras_object(config)
    return jax.tree.map(_placeholder, described)


def _placeholder(tensor: Any) -> np.ndarray:
    is_float = keras.backend.is_float_dtype(tensor.dtype)
    return np.full(tensor.shape, np.nan if is_float else 0, np.dtype(jax.dtypes.canonicalize_dtype(tensor.dtype)))
