"""Lowering in a process with Keras on JAX, for a backend that runs native layers without it."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.core.dims import join_shape
from jaxbridge.core.references import Reference
from jaxbridge.errors import LoweringError
from jaxbridge.stages import process
from jaxbridge.stages.abstract import Arguments, Target
from jaxbridge.stages.placement import DistributionRecord, Placement
from jaxbridge.stages.records import Compiled, Lowered, MemoryStats
from jaxbridge.stages.summary import Summary

#: Settings of JAX that a trace or its compilation depends on.
_JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
)

_DEVICES = "xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class ArrayRecord:
    """A `jax.ShapeDtypeStruct` for another process.

    Attributes:
        sizes: as text, since symbols belong to a process.
        dtype: its name.
        placement: how it is laid out.
    """

    sizes: tuple[str, ...]
    dtype: str
    placement: Placement | None

    @classmethod
    def of(cls, struct: Any) -> ArrayRecord:
        """Returns the record of a struct."""
        return cls(tuple(map(str, struct.shape)), np.dtype(struct.dtype).name, Placement.of(struct.sharding))

    def array(self) -> Any:
        """Returns an input like it, as `lower` takes them."""
        if not all(size.isdigit() for size in self.sizes):
            return keras.KerasTensor([int(size) if size.isdigit() else None for size in self.sizes], self.dtype)
        sharding = None if self.placement is None else self.placement.on_devices()
        return jax.ShapeDtypeStruct(tuple(map(int, self.sizes)), self.dtype, sharding=sharding)

    def struct(self, scope: jax.export.SymbolicScope) -> jax.ShapeDtypeStruct:
        """Returns the struct, without its devices."""
        shape = jax.export.symbolic_shape(join_shape(self.sizes), scope=scope)
        return jax.ShapeDtypeStruct(shape, self.dtype, sharding=self.placement and self.placement.abstract())


@dataclasses.dataclass(frozen=True)
class Job:
    """What the other process is asked.

    Attributes:
        question: "lower", "compile" or "summary".
        source: the function that makes the model, or the model's config.
        objects: by the name that the config has for them, the user's classes and functions.
        inputs: what the model is called with, of `ArrayRecord`s.
        options: further arguments of the question.
        distribution: Keras' distribution.
        jax_settings: settings of JAX by name.
        dtype_policy: Keras' global dtype policy.
        floatx: Keras' default dtype.
        image_data_format: Keras' setting.
    """

    question: str
    source: Reference | dict[str, Any]
    objects: dict[str, Reference]
    inputs: Arguments
    options: dict[str, Any]
    distribution: DistributionRecord | None
    jax_settings: dict[str, Any]
    dtype_policy: str
    floatx: str
    image_data_format: str


@dataclasses.dataclass(frozen=True)
class LoweredRecord:
    """The answer to "lower", and with `compiled` to "compile"."""

    args_info: Any
    out_info: Any
    texts: dict[str, str]
    cost: dict[str, float] | None
    compiled: CompiledRecord | None


@dataclasses.dataclass(frozen=True)
class CompiledRecord:
    """What a `Compiled` has; shardings as placements."""

    text: str | None
    cost: dict[str, float] | None
    memory: MemoryStats | None
    input_placements: Any
    output_placements: Any


def lower(given: Any, target: Target, training: bool, platforms: Any, gradient: bool) -> Lowered:
    """Does what `lower` does.

    Raises:
        LoweringError: the model cannot be made anew in another process, or that process failed.
    """
    options = {"training": bool(training), "platforms": platforms, "gradient": gradient}
    job = make_job("lower", given, target, options)
    record: LoweredRecord = _ask(job)

    def text(dialect: str) -> str:
        if dialect not in record.texts:
            raise LoweringError("HLO has no unknown sizes, and the inputs have. Ask for 'stablehlo'.")
        return record.texts[dialect]

    scope = jax.export.SymbolicScope()
    args_info, out_info = (jax.tree.map(lambda r: r.struct(scope), t) for t in (record.args_info, record.out_info))
    return Lowered(args_info, out_info, text, lambda: record.cost, lambda: _compile(job))


def _compile(job: Job) -> Compiled:
    found = _ask(dataclasses.replace(job, question="compile")).compiled
    shardings = (jax.tree.map(Placement.abstract, tree) for tree in (found.input_placements, found.output_placements))
    return Compiled(found.text, found.cost, found.memory, *shardings)


def summary(given: Any, target: Target, training: bool) -> Summary:
    """Does what `summary` does.

    Raises:
        LoweringError: as `lower` does.
    """
    return _ask(make_job("summary", given, target, {"training": bool(training)}))


def make_job(question: str, given: Any, target: Target, options: dict[str, Any]) -> Job:
    """Returns a question about a target.

    Args:
        question: as `Job` has it.
        given: what the user gave: a layer, or a function that makes one.
        target: what it is.
        options: as `Job` has them.
    """
    reference = None if isinstance(given, keras.layers.Layer) else Reference.to(given)
    if reference is None or reference.runs_a_script:
        source, objects = _config(target.layer)
    else:
        source, objects = reference, {}
    distribution = DistributionRecord.current()
    settings = {name: getattr(jax.config, name) for name in _JAX_SETTINGS if hasattr(jax.config, name)}
    return Job(
        question,
        source,
        objects,
        target.inputs.rebuild(map(ArrayRecord.of, target.inputs.structs)),
        options,
        distribution,
        settings,
        keras.config.dtype_policy().name,
        keras.config.floatx(),
        keras.config.image_data_format(),
    )


def _ask(job: Job) -> Any:
    environment = {"KERAS_BACKEND": "jax"}
    flags = os.environ.get("XLA_FLAGS", "")
    if job.distribution is not None and _DEVICES not in flags:
        # Nothing is run there, so that a CPU can stand for every device.
        environment["XLA_FLAGS"] = f"{flags} --{_DEVICES}={job.distribution.devices}".strip()
    return process.ask(job, environment)


# The model's config, and the user's classes and functions that it names.


def _config(layer: keras.layers.Layer) -> tuple[dict[str, Any], dict[str, Reference]]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")  # an error below
            config: Any = keras.saving.serialize_keras_object(layer)
        objects = _objects(layer, config)
    except Exception as error:  # whatever a user's `get_config` raises
        raise LoweringError(
            f"Keras' {backends.name()} backend runs native layers without JAX, so '{layer.name}' is made anew from its config "
            f"in a process with Keras on JAX, and that cannot be: {error}\nName its functions and classes at the top level of "
            "a file, or pass a function there that makes the model: `jaxbridge.lower(build_model, inputs)`; or run with "
            "KERAS_BACKEND=jax."
        ) from error
    config.pop("compile_config", None)
    for part in _parts(config):
        part.pop("build_config", None)  # built apart from its model, a layer's variables would have other paths
    return config, objects


def _objects(layer: keras.layers.Layer, config: Any) -> dict[str, Reference]:
    """Returns the user's classes and functions that a config names, by that name."""
    names = {value for part in _parts(config) for value in part.values() if isinstance(value, str)}
    if "__lambda__" in names:  # Keras would read it, and it would fail where it uses what its module imports
        raise LoweringError("it has a lambda, which a config has no name for.")
    found: dict[str, Reference] = {}
    for target in [*keras.saving.get_custom_objects().values(), *_named(layer), *_modules(config)]:
        name, reference = keras.saving.get_registered_name(target), Reference.to(target)
        if reference is None or name not in names or reference.module.split(".")[0] in ("keras", "jaxbridge"):
            continue
        if reference.runs_a_script:
            raise LoweringError(
                f"`{reference.name}` is defined in the script {reference.file}, all of which would run again. Put what the "
                'script does under `if __name__ == "__main__":`.'
            )
        found[name] = reference
    return found


def _parts(config: Any) -> Iterator[dict[str, Any]]:
    """Yields the dicts in a config, itself and those inside."""
    if isinstance(config, dict):
        yield config
    for part in config.values() if isinstance(config, dict) else config if isinstance(config, list | tuple) else ():
        yield from _parts(part)


def _named(layer: keras.layers.Layer) -> Iterator[Any]:
    """Yields the classes of a layer and of those in it, and the functions that they hold."""
    yield type(layer)
    yield from (value for value in vars(layer).values() if callable(value) and hasattr(value, "__qualname__"))
    for inner in getattr(layer, "layers", ()):
        yield from _named(inner)


def _modules(config: dict[str, Any]) -> Iterator[Any]:
    """Yields the classes of JAX modules, which a bridge layer's config has by the names of their Python modules."""
    for part in _parts(config):
        if part.get("jaxbridge") == "name":
            yield getattr(sys.modules.get(part["module"]), part["name"].split(".")[0], None)
