"""A Keras model as a function of its variables and inputs, with names for what goes in and out."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxbridge import adapters
from jaxbridge.core import records
from jaxbridge.core.shapes import Signature, make_signature
from jaxbridge.core.specs import axes_of
from jaxbridge.core.tree_paths import clean_path, leaf_paths, plain_containers
from jaxbridge.distribution.layouts import is_replicated, layout_parts
from jaxbridge.distribution.native import layout_of
from jaxbridge.errors import ExportError, JaxBridgeError, ShapeError, SignatureError
from jaxbridge.export._keras_private import input_was_made_up
from jaxbridge.layers.base import BridgeLayer
from jaxbridge.layers.variables import check_values


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One way to call a model.

    Attributes:
        model: the model.
        training: whether it is called in training mode.
        structure: the structure of its inputs, each leaf the index of an input.
        names: the inputs' names.
        dtypes: the inputs' dtypes as TensorFlow calls them.
        signature: the inputs' shapes and dtypes; for strings, which JAX does not have, the dtype is a stand-in.
    """

    model: keras.Model
    training: bool
    structure: Any
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    signature: Signature

    @property
    def variables(self) -> list[keras.Variable]:
        """Every variable of the model once: the trainable ones, then the others, the seeds among them."""
        return [*self.model.trainable_variables, *self.model.non_trainable_variables]

    def call(self, variables: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the outputs, and a dict of the new value of each variable that changes, by its index; nothing is written."""
        records.note(self.layouts())
        count = len(self.model.trainable_variables)
        arguments = keras.tree.map_structure(lambda index: inputs[index], self.structure)
        # As Keras' own steps do: a `call` without the argument is not given it.
        mode = {"training": self.training} if "training" in inspect.signature(self.model.call).parameters else {}
        before = list(variables[count:])
        outputs, after = self.model.stateless_call(list(variables[:count]), before, arguments, **mode)
        pairs = enumerate(zip(before, after, strict=True), start=count)
        return outputs, {index: new for index, (old, new) in pairs if new is not old}

    def layouts(self) -> records.Record | None:
        """Returns how the Keras distribution in effect splits the model's variables; None if it splits none."""
        laid_out = [(variable, layout_of(variable)) for variable in self.variables]
        split = [(v, *layout_parts(layout)) for v, layout in laid_out if not is_replicated(layout)]
        if not split or split[0][1] is None:
            return None
        mesh = tuple(axes_of(split[0][1]).items())
        return records.Record("", mesh, tuple((variable.path, P(*axes)) for variable, _, axes in split))

    def named_outputs(self, outputs: Any) -> dict[str, Any]:
        """Returns outputs by name: keys of a dict, else the names of the output layers."""
        flat = keras.tree.flatten(outputs)
        if isinstance(outputs, dict):
            return dict(zip(_distinct(leaf_paths(outputs)), flat, strict=True))
        given = list(getattr(self.model, "output_names", []))
        names = given if len(given) == len(flat) else [f"output_{index}" for index in range(len(flat))]
        return dict(zip(_distinct(names), flat, strict=True))


def parts_of(model: keras.Model) -> list[Any]:
    """Returns a model, its layers at any depth, and whatever else hangs on them, each once."""
    found, seen, left = [], set(), [model]
    while left:
        node: Any = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        found.append(node)
        if isinstance(node, keras.layers.Layer):
            left += vars(node).values()
        elif isinstance(node, Mapping):
            left += node.values()
        elif isinstance(node, list | tuple):
            left += node
    return found


def host_array(value: Any) -> np.ndarray:
    """Returns a tensor or variable of the Keras backend as a numpy array."""
    if tuple(value.shape) == ():  # numpy cannot read a scalar bfloat16 of TensorFlow (2.21), a vector it can
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.reshape(value, (1,)))).reshape(())
    return np.asarray(keras.ops.convert_to_numpy(value))


def make_endpoint(
    model: keras.Model,
    training: bool,
    inputs: Any,
    polymorphic_shapes: Any,
    polymorphic_constraints: Sequence[str],
) -> Endpoint:
    """Finds out how a model is called.

    Raises:
        ExportError: the model is not built, or nothing says what its inputs are.
        ShapeError: the declared shapes do not fit the inputs.
    """
    if not isinstance(model, keras.Model):
        raise SignatureError(_no_model(model))
    if not model.built:
        raise ExportError(f"Model '{model.name}' is not built: call it once, or give its inputs with `keras.Input`.")
    _check_call(model)
    check_values(model.variables)
    if inputs is None:
        inputs = _inputs_of(model)
    else:
        _check_inputs(inputs, model)
    flat = keras.tree.flatten(inputs)
    if polymorphic_shapes is None and not polymorphic_constraints:
        polymorphic_shapes, polymorphic_constraints = _declared_by_layers(model, flat)
    texts = None if polymorphic_shapes is None else tuple(keras.tree.flatten(polymorphic_shapes))
    if texts is not None and len(texts) != len(flat):
        raise ShapeError(f"`polymorphic_shapes` has {len(texts)} entries and the model has {len(flat)} inputs.")
    dtypes = tuple(_dtype_name(leaf) for leaf in flat)
    signature = make_signature(
        tuple(tuple(leaf.shape) for leaf in flat),
        tuple("uint8" if dtype == "string" else dtype for dtype in dtypes),
        declared=texts,
        constraints=tuple(polymorphic_constraints),
        # The batch size of an array is one that was seen, not one that is promised.
        symbolic_batch=not all(isinstance(leaf, keras.KerasTensor) for leaf in flat),
    )
    return Endpoint(model, training, _numbered(inputs), _input_names(inputs, flat), dtypes, signature)


def _no_model(given: Any) -> str:
    """Returns what to write for something that is no model."""
    text = f"`model` must be a Keras model; got {given!r:.200} of type {type(given).__name__}."
    if isinstance(given, keras.layers.Layer):
        inside = "the_layer"
    elif (library := _library_of(given)) is not None:
        inside = f"jaxbridge.{'FlaxLayer' if library.startswith('flax.') else 'ModuleLayer'}(the_module)"
    elif callable(given):
        inside = "jaxbridge.JaxLayer(the_function)"
    else:
        return text
    return f"{text} Make one: `keras.Sequential([keras.Input((28, 28, 1)), {inside}])`."


def _library_of(given: Any) -> str | None:
    """Returns the library that something is a module of, None for functions and all else."""
    if inspect.isroutine(given):
        return None
    try:
        library = adapters.find_adapter(given).library
    except JaxBridgeError:
        return None
    return library if library != "builtins" else None


def _check_inputs(inputs: Any, model: keras.Model) -> None:
    for leaf in keras.tree.flatten(inputs):
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise SignatureError(
                f"`inputs` must be `keras.KerasTensor`s or arrays in the structure of the model's inputs; got {leaf!r:.200} "
                f"of type {type(leaf).__name__}. Write `keras.KerasTensor((None, 28, 28, 1), 'float32')`."
            )
    declared, given = getattr(model, "inputs", None), keras.tree.flatten(inputs)
    if declared and len(declared) != len(given):
        raise SignatureError(f"`inputs` has {len(given)} tensors, and model '{model.name}' has {len(declared)} inputs.")


def _declared_by_layers(model: keras.Model, inputs: Sequence[Any]) -> tuple[str | None, tuple[str, ...]]:
    """Returns shape and constraints that the layers which take a model's only input declare of it; none where they differ."""
    declared = set()
    for part in parts_of(model) if len(inputs) == 1 else ():
        if isinstance(part, BridgeLayer) and isinstance(part._runtime.polymorphic_shapes, str):
            try:
                takes_it = part.input is getattr(model, "inputs", [None])[0]
            except (AttributeError, ValueError):  # it was never called in a graph of Keras, or several times
                continue
            if takes_it:
                declared.add((part._runtime.polymorphic_shapes, part._runtime.constraints))
    return declared.pop() if len(declared) == 1 else (None, ())


def _check_call(model: keras.Model) -> None:
    parameters = list(inspect.signature(model.call).parameters.values())
    several = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    others = [name for name in several[1:] if name != "training"]
    if others:
        names = ", ".join([several[0], *others])
        raise ExportError(
            f"Model '{model.name}' is called with the arguments {names}; only a model whose inputs are one argument can be "
            f"exported. Let its `call` take them as one dict or list, or export `keras.Model([{names}], model({names}))`, "
            "where each is a `keras.Input`: it has the same variables."
        )


def _dtype_name(leaf: Any) -> str:
    name = keras.backend.standardize_dtype(leaf.dtype)
    return "string" if name.startswith(("str", "<U", "|S", "object")) else np.dtype(name).name


def _inputs_of(model: keras.Model) -> Any:
    if isinstance(model, keras.Sequential) and getattr(model, "inputs", None):
        (tensor,) = model.inputs  # `model.input` is there only once it has been called
        # Of an `Input` that Keras made of the first call's shape the batch size is promised to nobody.
        return keras.KerasTensor((None, *tensor.shape[1:]), tensor.dtype) if input_was_made_up(model) else tensor
    try:
        return model.input
    except (AttributeError, ValueError):  # a subclassed model has none
        shapes = (model.get_build_config() or {}).get("input_shape")
    if shapes is None:
        raise ExportError(
            f"Nothing says what the inputs of model '{model.name}' are. Pass them: "
            "`inputs=keras.KerasTensor((None, 28, 28, 1), 'float32')`, in the structure that the model is called with."
        )
    # These are the shapes of the call that built it, whose batch size is not promised for others.
    return keras.tree.map_shape_structure(
        lambda shape: keras.KerasTensor((None, *shape[1:]) if shape else (), model.input_dtype),
        plain_containers(shapes),
    )


def _numbered(inputs: Any) -> Any:
    count = iter(range(len(keras.tree.flatten(inputs))))
    return keras.tree.map_structure(lambda _: next(count), inputs)


def _input_names(inputs: Any, flat: Sequence[Any]) -> tuple[str, ...]:
    paths = leaf_paths(_numbered(inputs))
    named = []
    for path, leaf in zip(paths, flat, strict=True):
        if isinstance(inputs, dict):
            named.append(path)
        elif _has_automatic_name(leaf):
            named.append(f"inputs_{path}" if path else "inputs")
        else:
            named.append(leaf.name)
    return tuple(_distinct(named, as_inputs=True))


def _has_automatic_name(leaf: Any) -> bool:
    name = getattr(leaf, "name", None)
    return not name or name.startswith("keras_tensor")


def _distinct(names: Sequence[str], as_inputs: bool = False) -> list[str]:
    """Returns names as TensorFlow takes them, each once.

    Of inputs those that differ in case alone are one name to it, and its functions have a parameter `self` themselves.
    """
    found: list[str] = []
    taken = {"self"} if as_inputs else set()
    for name in names:
        base = cleaned = clean_path(name).replace("/", "_").replace("-", "_")
        number = 0
        while (spelling := cleaned.lower() if as_inputs else cleaned) in taken:
            number += 1
            cleaned = f"{base}_{number}"
        taken.add(spelling)
        found.append(cleaned)
    return found
