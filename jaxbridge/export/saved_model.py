"""Keras models as SavedModels that TensorFlow serves without JAX."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from jaxbridge import backends
from jaxbridge._optional import require
from jaxbridge.errors import ExportError
from jaxbridge.export.endpoint import Endpoint, host_array, make_endpoint
from jaxbridge.export.verify import Verification, compare_served

_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        path: the SavedModel's directory.
        inputs: name -> (shape with None for unknown sizes, dtype name).
        outputs: the outputs' names.
        variables: the variables' paths, each once.
        weights_bytes: size of the values of the variables.
        graph_bytes: size of `saved_model.pb`.
        platforms: the platforms it runs on.
        verification: how it was compared with the model; None where that was not asked for.
    """

    path: Path
    inputs: dict[str, tuple[tuple[int | None, ...], str]]
    outputs: tuple[str, ...]
    variables: tuple[str, ...]
    weights_bytes: int
    graph_bytes: int
    platforms: tuple[str, ...]
    verification: Verification | None


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    platforms: Sequence[str] | None = None,
    training: bool = False,
    inputs: Any = None,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    verify: bool = True,
    verification_inputs: Sequence[Any] | None = None,
) -> ExportReport:
    """Writes a built Keras model as a SavedModel that TensorFlow serves without JAX.

    Works on Keras' JAX and TensorFlow backends, for any model: bridge layers, native layers, or both. Weights are
    variables with their Keras paths as names, each stored once; unknown sizes stay unknown; state and random draws go
    on when a training endpoint is served; first-order gradients are kept. What was written is loaded by a fresh process
    that cannot import JAX and compared with the model; only then does it appear at `path`.

    Args:
        model: the model, built.
        path: the directory to write. An existing SavedModel there is replaced.
        platforms: platforms to run on, out of "cpu", "cuda", "rocm" and "tpu"; None for the one TensorFlow sees, plus
            "cpu". The devices need not be there.
        training: whether the endpoint calls the model in training mode.
        inputs: the model's inputs, in its structure, as `keras.KerasTensor`s (None for unknown sizes) or arrays; needed
            only for subclassed models whose inputs are not floats.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, 4*k)" per input, in their structure.
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        verify: whether to load and compare before anything appears at `path`.
        verification_inputs: inputs to compare on, each in the structure of the model's inputs; None for made-up ones at
            two batch sizes.

    Returns:
        A report of what was written. The SavedModel has the signature "serving_default" with the inputs' and outputs'
        names, and a function `serve` that takes the inputs in the model's structure.

    Raises:
        ExportError: the model is not built, `path` holds something else, or what was written cannot be served or gives
            other results. Nothing is left at `path` then.
        ShapeError: the model cannot be traced with its unknown sizes.
        MissingDependencyError: TensorFlow is not installed.

    Example:
        report = export_saved_model(model, "served", platforms=("cpu", "cuda"))
        served = tf.saved_model.load("served")
        served.signatures["serving_default"](images=images)["logits"]
    """
    require("tensorflow", "Exporting a SavedModel")
    path = Path(path)
    _check_target(path)
    endpoint = make_endpoint(model, training, inputs, polymorphic_shapes, polymorphic_constraints)
    backend = backends.current()
    platforms = tuple(platforms) if platforms else backend.serving_platforms()
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        with backends.platforms(platforms):
            outputs = _write(endpoint, folder / "model", platforms)
        verification = compare_served(endpoint, folder / "model", _SIGNATURE, verification_inputs) if verify else None
        if path.exists():
            shutil.rmtree(path)
        os.replace(folder / "model", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ExportReport(
        path=path,
        inputs=dict(
            zip(
                endpoint.names,
                zip(endpoint.signature.keras_shapes(), endpoint.signature.dtypes, strict=True),
                strict=True,
            )
        ),
        outputs=outputs,
        variables=tuple(variable.path for variable in endpoint.variables),
        weights_bytes=sum(host_array(variable).nbytes for variable in endpoint.variables),
        graph_bytes=(path / "saved_model.pb").stat().st_size,
        platforms=platforms,
        verification=verification,
    )


def _check_target(path: Path) -> None:
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / "saved_model.pb").exists())):
        raise ExportError(f"{path} exists and is no SavedModel; it is not replaced. Choose another path or remove it.")


def _write(endpoint: Endpoint, directory: Path, platforms: tuple[str, ...]) -> tuple[str, ...]:
    """Writes the SavedModel and returns the names of the outputs."""
    import tensorflow as tf

    module = tf.Module()
    variables = [
        tf.Variable(tf.constant(host_array(v)), name=v.path, trainable=v.trainable, dtype=v.dtype)
        for v in endpoint.variables
    ]
    non_trainable = variables[len(endpoint.model.trainable_variables) :]
    run = backends.current().serving_function(endpoint.call, variables, endpoint.signature, platforms)
    specs = [
        tf.TensorSpec(shape, dtype, name)
        for shape, dtype, name in zip(
            endpoint.signature.keras_shapes(), endpoint.signature.dtypes, endpoint.names, strict=True
        )
    ]

    def serve(tensors: Sequence[Any]) -> Any:
        outputs, state = run([variable.read_value() for variable in variables], list(tensors))
        for variable, value in zip(non_trainable, state, strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        return outputs

    structured = keras.tree.map_structure(lambda index: specs[index], endpoint.structure)
    module.serve = tf.function(
        lambda inputs: serve(keras.tree.flatten(inputs)), input_signature=[structured], autograph=False
    )

    def serve_named(**tensors: Any) -> dict[str, Any]:
        # Through `serve`, so that the graph holds the model once.
        inputs = keras.tree.map_structure(lambda index: tensors[endpoint.names[index]], endpoint.structure)
        return endpoint.named_outputs(module.serve(inputs))

    named = tf.function(serve_named, autograph=False).get_concrete_function(
        **dict(zip(endpoint.names, specs, strict=True))
    )
    module.model_variables = variables
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(directory), signatures={_SIGNATURE: named}, options=options)
    return tuple(named.structured_outputs)
