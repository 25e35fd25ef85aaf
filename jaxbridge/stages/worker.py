"""The process with Keras on JAX that answers a `Job`: `python -m jaxbridge.stages.worker`."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import jax
import keras

from jaxbridge.core.references import Reference
from jaxbridge.errors import LoweringError
from jaxbridge.stages.abstract import Arguments
from jaxbridge.stages.elsewhere import ArrayRecord, CompiledRecord, Job, LoweredRecord
from jaxbridge.stages.lowering import lower
from jaxbridge.stages.placement import Placement
from jaxbridge.stages.records import DIALECTS, Compiled, Lowered
from jaxbridge.stages.summary import summary


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's code prints is no answer
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = ("answer", _answer(job))
        except Exception as error:  # raised in the process that asked
            result = ("error", (type(error).__name__, str(error)))
        answers.write(pickle.dumps(result))
        answers.flush()


def _answer(job: Job) -> Any:
    for name, value in job.jax_settings.items():
        jax.config.update(name, value)
    keras.config.set_floatx(job.floatx)
    keras.config.set_image_data_format(job.image_data_format)
    keras.config.set_dtype_policy(job.dtype_policy)
    keras.utils.clear_session()  # names are counted anew
    keras.distribution.set_distribution(None)
    if job.distribution is not None:
        job.distribution.enter()
    given = (job.inputs.args, job.inputs.kwargs)
    inputs = Arguments(*jax.tree.map(lambda leaf: leaf.array() if isinstance(leaf, ArrayRecord) else leaf, given))
    if job.question == "summary":
        return summary(lambda: _make(job), inputs, **job.options)
    lowered = lower(lambda: _make(job), inputs, **job.options)
    return _lowered_record(lowered, lowered.compile() if job.question == "compile" else None)


def _make(job: Job) -> Any:
    if isinstance(job.source, Reference):
        return job.source.load()()
    objects = {name: reference.load() for name, reference in job.objects.items()}
    return keras.saving.deserialize_keras_object(job.source, custom_objects=objects)


def _lowered_record(lowered: Lowered, compiled: Compiled | None) -> LoweredRecord:
    texts = {}
    for dialect in DIALECTS:
        try:
            texts[dialect] = lowered.as_text(dialect)
        except LoweringError:  # unknown sizes, which HLO cannot have
            continue
    return LoweredRecord(
        jax.tree.map(ArrayRecord.of, lowered.args_info),
        jax.tree.map(ArrayRecord.of, lowered.out_info),
        texts,
        lowered.cost_analysis(),
        None if compiled is None else _compiled_record(compiled),
    )


def _compiled_record(compiled: Compiled) -> CompiledRecord:
    return CompiledRecord(
        compiled.as_text(),
        compiled.cost_analysis(),
        compiled.memory_analysis(),
        jax.tree.map(Placement.of, compiled.input_shardings),
        jax.tree.map(Placement.of, compiled.output_shardings),
    )


if __name__ == "__main__":
    main()
