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
from jaxbridge.layers.saving.keras_form import tensors
from jaxbridge.layers.saving.names import Names
from jaxbridge.layers.saving.parts import bytes_of, shape_of


def pack_inputs(structure: InputStructure, signature: Signature) -> Any:
    """Returns the inputs that a layer was built for, for its build config."""
    tensors = [keras.KerasTensor(s, d) for s, d in zip(signature.keras_shapes(), signature.dtypes, strict=True)]
    inputs = structure.rebuild(tensors)
    return keras.saving.serialize_keras_object({"args": inputs.args, "kwargs": inputs.kwargs})


def unpack_inputs(config: Any) -> CallInputs:
    """Returns the inputs that `pack_inputs` wrote, as KerasTensors.

    Raises:
        StructureError: the config describes something else.
    """
    inputs = tensors(config, "The build config's `inputs`", Names.now())
    if not (
        isinstance(inputs, dict) and isinstance(inputs.get("args"), list) and isinstance(inputs.get("kwargs"), dict)
    ):
        raise StructureError("The file is damaged: the build config of a layer must have `args` and `kwargs`.")
    return CallInputs(tuple(inputs["args"]), inputs["kwargs"])


def check_shapes(config: Any) -> None:
    """Checks the build config of `keras.layers.JaxLayer`, which holds shapes alone.

    Raises:
        StructureError: it holds something else, or more than this machine can hold.
    """
    names = Names.now()

    def check(shapes: Any, where: str) -> None:
        if isinstance(shapes, dict):
            for name, shape in shapes.items():
                check(shape, f"{where}['{name:.80}']")
        elif isinstance(shapes, list | tuple) and any(isinstance(shape, list | tuple | dict) for shape in shapes):
            for index, shape in enumerate(shapes):
                check(shape, f"{where}[{index}]")
        elif shapes is not None:
            names.take(bytes_of(shape_of(shapes, where, unknown=True), np.dtype("float32")), where)

    check(config, "The build config")


def pack_arrays(tree: Any, name: str) -> Any:
    """Returns structure, shapes and dtypes of a pytree of arrays (dicts, lists, tuples) for a config.

    Raises:
        StructureError: the pytree holds nodes that a config cannot name.
    """
    described = jax.tree.map(
        lambda leaf: keras.KerasTensor(np.shape(leaf), keras.backend.standardize_dtype(np.asarray(leaf).dtype)), tree
    )
    packed = keras.saving.serialize_keras_object(described)
    if jax.tree.structure(tensors(packed, f"`{name}`", Names(None))) != jax.tree.structure(described):
        raise StructureError(
            f"A layer that was given `{name}` and has no `init_fn` can be saved if `{name}` is made of dicts, lists and "
            f"tuples; it has {jax.tree.structure(tree)}. Pass an `init_fn` that makes params of this structure."
        )
    return packed
