"""Keras models as SavedModels that TensorFlow serves without JAX."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from jaxbridge import backends
from jaxbridge._optional import require
from jaxbridge.backends.base import Lowering
from jaxbridge.core.arguments import checked
from jaxbridge.core.helpful_sizes import declaration
from jaxbridge.core.partition import Sharding
from jaxbridge.errors import ExportError, JaxBridgeError, ShapeError
from jaxbridge.export.artifact import write_artifacts
from jaxbridge.export.endpoint import Endpoint, host_array, make_endpoint, parts_of
from jaxbridge.export.folders import check_directory, put, workshop, writing_to
from jaxbridge.export.given_inputs import VERIFICATION_INPUTS, read_cases
from jaxbridge.export.sharding import as_sharding, read_records
from jaxbridge.export.verify import Verification, compare_served, runs_on_made_up_inputs

if TYPE_CHECKING:
    from jaxbridge.jax2tf.targets import Target

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
        target: what it was written for: the TensorFlow release or StableHLO version, and what that reads. The file
            `assets.extra/jaxbridge.json` in the SavedModel says the same.
        sharding: how its layers say that arrays are split, as `read_sharding` gives it; None where they say nothing.
        jax_functions: what `load_jax` can load: "" is the whole model, else the paths of its bridge layers.
        has_gradients: whether it can be differentiated, up to the order asked for; if not, calling it under a gradient
            tape raises.
        verification: how it was compared with the model, and in which TensorFlow; None where that was not asked for.
    """

    path: Path
    inputs: dict[str, tuple[tuple[int | None, ...], str]]
    outputs: tuple[str, ...]
    variables: tuple[str, ...]
    weights_bytes: int
    graph_bytes: int
    platforms: tuple[str, ...]
    target: Target
    sharding: Sharding | None
    jax_functions: tuple[str, ...]
    has_gradients: bool
    verification: Verification | None


@checked(verification_inputs=VERIFICATION_INPUTS)
def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    platforms: Sequence[str] | None = None,
    target: str | None = None,
    nan: str = "keep",
    source_info: bool = False,
    training: bool = False,
    gradient_order: int = 1,
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
        path: the directory to write. An existing SavedModel there is replaced; files in it that neither TensorFlow nor an
            export wrote (`assets.extra/tf_serving_warmup_requests`, a README) stay.
        platforms: platforms to run on, out of "cpu", "cuda", "rocm" and "tpu"; None for the one TensorFlow sees, plus
            "cpu". The devices need not be there; without the one that TensorFlow sees here, pass `verify=False`.
        target: what to write for: "tensorflow==2.18" (that release and all newer ones serve it), a StableHLO version such
            as "1.9.0", or None for the installed TensorFlow. The comparison runs in the installed TensorFlow all the same,
            which reads what older ones read.
        nan: "keep": maxima and minima of floats in JAX code are NaN where an operand is, as they are in JAX. "fast": as
            TensorFlow's compiler has them, which on CPU may drop the NaN. TensorFlow Lite converts nothing else. Whatever the
            layers were made with.
        source_info: whether the file holds the files and lines of the JAX code, which are absolute paths of this machine,
            beside the names of scopes and modules, which profiles show.
        training: whether the endpoint calls the model in training mode.
        gradient_order: up to which order the served model can be differentiated. Each order above 1 adds a module of about
            the size of the backward pass; those in which an order cannot be traced are an error.
        inputs: the model's inputs, in its structure, as `keras.KerasTensor`s (None for unknown sizes) or arrays; needed
            only for subclassed models whose inputs are not floats.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, 4*k)" per input, in their structure.
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        verify: whether to load and compare before anything appears at `path`.
        verification_inputs: inputs to compare on, an entry per call, each in the structure of the model's inputs or a
            mapping of their names; None for made-up ones at two batch sizes.

    Returns:
        A report of what was written. The SavedModel has the signature "serving_default" with the inputs' and outputs'
        names, and a function `serve` that takes the inputs in the model's structure. A name that TensorFlow cannot have
        for an input ("self", a second one that differs in case alone) gets a number: see `inputs` of the report.

    Raises:
        SignatureError: an argument is not what it must be, such as a `model` that is none or a platform that there is not.
        ConversionError: the target is unknown, or an op needs a newer StableHLO than it reads.
        ExportError: the model is not built or is called with several arguments, none of the platforms is this machine's
            (where it is to be verified), `path` holds something else or cannot be written, or what was written cannot be
            served or gives other results. Nothing is left at `path` then.
        ShapeError: the model runs, but cannot be traced with its unknown sizes. If it does not run either, the error is its
            own.
        MissingDependencyError: TensorFlow is not installed.

    Example:
        report = export_saved_model(model, "served", platforms=("cpu", "cuda"))
        served = tf.saved_model.load("served")
        served.signatures["serving_default"](images=images)["logits"]
    """
    require("tensorflow", "Exporting a SavedModel")
    import tensorflow as tf

    from jaxbridge.jax2tf import targets

    cases = read_cases(verification_inputs)
    directory = Path(path).resolve()  # a symbolic link stays one
    check_directory(directory)
    endpoint = make_endpoint(model, training, inputs, polymorphic_shapes, polymorphic_constraints)
    lowering = Lowering(_checked_platforms(platforms, verify), target, nan, bool(source_info))
    written_for = targets.resolve(target)
    with workshop(directory) as folder:
        written = folder / "model"
        with writing_to(directory, tf.errors.OpError):
            outputs, has_gradients = _write(endpoint, written, lowering, gradient_order)
            _describe(written, written_for, lowering)
            said = read_records(written)
            jax_functions = write_artifacts(endpoint, written, lowering.platforms or ()) if said else ()
        verification = compare_served(endpoint, written, _SIGNATURE, cases, nan == "keep") if verify else None
        graph_bytes = (written / "saved_model.pb").stat().st_size
        with writing_to(directory):
            put(written, directory, folder / "replaced")
    return ExportReport(
        path=Path(path),
        inputs=dict(
            zip(
                endpoint.names,
                zip(endpoint.signature.keras_shapes(), endpoint.dtypes, strict=True),
                strict=True,
            )
        ),
        outputs=outputs,
        variables=tuple(variable.path for variable in endpoint.variables),
        weights_bytes=sum(host_array(variable).nbytes for variable in endpoint.variables),
        graph_bytes=graph_bytes,
        platforms=lowering.platforms or (),
        target=written_for,
        sharding=as_sharding(said) if said else None,
        jax_functions=jax_functions,
        has_gradients=has_gradients,
        verification=verification,
    )


def _checked_platforms(platforms: Sequence[str] | None, verify: bool) -> tuple[str, ...]:
    if platforms is None:
        return backends.current().serving_platforms()
    here = backends.current().serving_platforms()
    if verify and not set(platforms) & set(here):
        raise ExportError(
            f"An export for {', '.join(platforms)} alone cannot be compared with the model on this machine, where TensorFlow "
            f"runs on {', '.join(here)}. Write `platforms={(*here, *platforms)!r}`, or pass `verify=False`."
        )
    return tuple(platforms)


def _describe(written: Path, target: Target, lowering: Lowering) -> None:
    """Writes what the SavedModel was written with and for, into the folder that servers leave to their users."""
    packages = ("jax", "jaxlib", "keras", "tensorflow", "tensorflow-cpu", "flax")
    found = {dist.name.lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    facts = {
        "target": dataclasses.asdict(target),
        "platforms": lowering.platforms,
        "written_with": {name: found[name] for name in packages if name in found},
    }
    (written / "assets.extra").mkdir()
    (written / "assets.extra" / "jaxbridge.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")


# The graph.


def _write(
    endpoint: Endpoint, directory: Path, lowering: Lowering, gradient_order: int
) -> tuple[tuple[str, ...], bool]:
    """Writes the SavedModel and returns the names of the outputs, and whether it has gradients."""
    try:
        with backends.lowered_for(lowering):
            module, named = _trace(endpoint, lowering, gradient_order)
    except JaxBridgeError:
        raise
    except Exception as error:  # whatever the model raises while it is traced
        if not endpoint.signature.symbols() or not runs_on_made_up_inputs(endpoint):
            raise  # its own error, with its own lines
        raise _tracing_error(endpoint, error) from error
    with backends.lowered_for(lowering):  # gradients are traced now
        try:
            _save(module, named, directory, gradients=True)
            has_gradients = True
        except ValueError as error:
            if "tracing gradients" not in str(error):
                raise
            warnings.warn(
                f"Model '{endpoint.model.name}' is exported without gradients; calling it under a tape raises. They "
                f"cannot be traced for inputs of shapes {', '.join(endpoint.signature.shapes)}: {error.__cause__}\nSay "
                f"what is known of the sizes: `polymorphic_shapes={declaration(endpoint.signature)}` with sizes such as "
                "`2*k` in it, and `polymorphic_constraints=` such as ('k >= 3',) between its names.",
                stacklevel=4,  # the caller, behind what checks the arguments
            )
            shutil.rmtree(directory, ignore_errors=True)
            _save(module, named, directory, gradients=False)
            has_gradients = False
    return tuple(named.structured_outputs), has_gradients


def _save(module: Any, named: Any, directory: Path, gradients: bool) -> None:
    import tensorflow as tf

    options = tf.saved_model.SaveOptions(experimental_custom_gradients=gradients)
    tf.saved_model.save(module, str(directory), signatures={_SIGNATURE: named}, options=options)


def _trace(endpoint: Endpoint, lowering: Lowering, gradient_order: int) -> tuple[Any, Any]:
    """Returns a module with the variables and `serve`, and the function of the signature, both traced."""
    import tensorflow as tf

    from jaxbridge.jax2tf.convert import checked_sizes
    from jaxbridge.jax2tf.saved_gradients import keep_gradients

    module = tf.Module()
    module.model_variables = variables = [
        # Of the dtype of the array: JAX without its 64-bit types keeps 32 bits in a variable that says float64.
        tf.Variable(tf.constant(host_array(v)), name=v.path, trainable=v.trainable)
        for v in endpoint.variables
    ]
    module.resources = _resources(endpoint.model)
    run = backends.current().serving_function(endpoint.call, variables, endpoint.signature, lowering)
    specs = [
        tf.TensorSpec(shape, dtype, name)
        for shape, dtype, name in zip(endpoint.signature.keras_shapes(), endpoint.dtypes, endpoint.names, strict=True)
    ]

    def run_model(*tensors: Any) -> Any:
        # Layers that TensorFlow traces know nothing of what the export declares; where JAX traces all, the messages of the
        # conversion would count the variables among the inputs.
        inputs = checked_sizes(endpoint.signature, tensors)
        outputs, changed = run([variable.read_value() for variable in variables], inputs)
        for index, value in changed.items():
            variables[index].assign(tf.cast(value, variables[index].dtype))
        return outputs

    # Every `tf.function` on the module, and every one called inside another, is traced again while it is saved. What they
    # call is a concrete function, so that the file holds the model and its gradient once.
    with keep_gradients(gradient_order) as backward_passes:
        once = tf.function(run_model, autograph=False).get_concrete_function(*specs)
    module.backward_passes = backward_passes
    structured = keras.tree.map_structure(lambda index: specs[index], endpoint.structure)
    module.serve = tf.function(
        lambda inputs: once(*keras.tree.flatten(inputs)), input_signature=[structured], autograph=False
    )

    def serve_named(**tensors: Any) -> dict[str, Any]:
        return endpoint.named_outputs(once(*(tensors[name] for name in endpoint.names)))

    named = tf.function(serve_named, autograph=False).get_concrete_function(
        **dict(zip(endpoint.names, specs, strict=True))
    )
    return module, named


def _resources(model: keras.Model) -> list[Any]:
    """Returns the lookup tables of a model's layers: a SavedModel must track what its functions use."""
    import tensorflow as tf

    return [part for part in parts_of(model) if isinstance(part, tf.saved_model.experimental.TrackableResource)]


def _tracing_error(endpoint: Endpoint, error: Exception) -> ShapeError:
    """Returns the error for a model that runs, but cannot be traced with its unknown sizes."""
    name, symbols = endpoint.model.name, endpoint.signature.symbols()
    return ShapeError(
        f"Model '{name}' cannot be traced for inputs of shapes {', '.join(endpoint.signature.shapes)}, where "
        f"{', '.join(map(repr, symbols))} {'is' if len(symbols) == 1 else 'are'} unknown, though it runs at known sizes: "
        f"{type(error).__name__}: {error}\nEither give the sizes (`inputs=keras.KerasTensor(...)` with numbers in the "
        f"shape), or say what is known of them: `polymorphic_shapes={declaration(endpoint.signature)}` with sizes such as "
        "`2*k` in it, and `polymorphic_constraints=` such as ('k >= 2',) between its names."
    )
