"""The process that runs a layer on one backend for `assert_backends_agree`: `python -m jaxbridge.testing.worker`."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.core.tree_paths import leaf_paths
from jaxbridge.export.endpoint import host_array
from jaxbridge.export.saved_model import export_saved_model
from jaxbridge.export.serving import serve_without_jax
from jaxbridge.testing.agreement import Job

_TRAINING_CALLS = 2


def main(job_file: str, results_file: str) -> None:
    job: Job = pickle.loads(Path(job_file).read_bytes())
    factory = job.factory.load()
    layer = _make(job, factory)
    results: dict[str, Any] = {f"path of variable {i}": variable.path for i, variable in enumerate(layer.variables)}
    _model(layer, job).save_weights(job.own_weights)
    Path(job.own_weights + ".ready").touch()
    if job.export_to is not None:
        results.update(_served(layer, job))
    for label, inputs in job.cases:
        results.update(_inference(layer, label, inputs))
        results.update(_gradients(layer, label, inputs))
    for label, inputs in job.cases:
        results.update(_training(layer, label, inputs))
    for other, file in job.weights_of_others.items():
        while not Path(file + ".ready").exists():  # ended by the process that started this one
            time.sleep(0.05)
        keras.utils.set_random_seed(job.seed + 1)
        layer = _make(job, factory, seed=job.seed + 1)
        _model(layer, job).load_weights(file)
        for label, inputs in job.cases:
            values = _inference(layer, label, inputs)
            results.update({f"read from {other}: {key}": value for key, value in values.items()})
    Path(results_file).write_bytes(pickle.dumps(results))


def _make(job: Job, factory: Any, seed: int | None = None) -> Any:
    """Makes the layer and builds it with unknown sizes where the cases differ."""
    keras.utils.set_random_seed(job.seed if seed is None else seed)
    layer = factory()
    layer(*_symbolic_inputs(job))
    return layer


def _symbolic_inputs(job: Job) -> tuple[Any, ...]:
    def common(*leaves: Any) -> keras.KerasTensor:
        shapes = [np.shape(leaf) for leaf in leaves]
        shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
        return keras.KerasTensor([None, *shape[1:]] if shape else [], np.asarray(leaves[0]).dtype.name)

    return jax.tree.map(common, *(inputs for _, inputs in job.cases))


def _model(layer: Any, job: Job) -> keras.Model:
    inputs = jax.tree.map(lambda t: keras.Input(t.shape[1:], dtype=t.dtype), _symbolic_inputs(job))
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], layer(*inputs), name="model")


def _flat(label: str, what: str, tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree as numpy arrays, by a sentence that says what each is."""
    return {
        f"{what} at {label}{f', leaf {path!r}' if path else ''}": host_array(leaf)
        for path, leaf in zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True)
    }


def _tensors(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return jax.tree.map(keras.ops.convert_to_tensor, inputs)


def _inference(layer: Any, label: str, inputs: tuple[Any, ...]) -> dict[str, Any]:
    return _flat(label, "outputs at inference", layer(*_tensors(inputs), training=False))


def _training(layer: Any, label: str, inputs: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for call in range(_TRAINING_CALLS):
        outputs = layer(*_tensors(inputs), training=True)
        found.update(_flat(label, f"outputs of training call {call}", outputs))
        for variable in layer.non_trainable_variables:
            # Seeds are int64 on one backend and uint32 on another.
            value = host_array(variable.value)
            value = value.astype(np.int64) if value.dtype.kind in "iu" else value
            found[f"{variable.path} after training call {call} at {label}"] = value
    return found


def _gradients(layer: Any, label: str, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Gradients of a scalar that gives every value of every output a weight of its own."""
    tensors = _tensors(inputs)
    leaves, treedef = jax.tree.flatten(tensors)
    floats = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
    trainable = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]

    def scalar(values: list[Any]) -> Any:
        given = list(leaves)
        for index, value in zip(floats, values[len(trainable) :], strict=True):
            given[index] = value
        arguments = jax.tree.unflatten(treedef, given)
        outputs, _ = layer.stateless_call(values[: len(trainable)], others, *arguments, training=True)
        return sum(_weighted(leaf) for leaf in jax.tree.leaves(outputs) if _is_float(leaf))

    grads = backends.current().gradient(scalar, [*trainable, *(leaves[i] for i in floats)])
    names = [variable.path for variable in layer.trainable_variables]
    paths = leaf_paths(tensors)
    found = _flat(label, "gradient", dict(zip(names, grads[: len(trainable)], strict=True)))
    inputs_grads = {paths[i]: grad for i, grad in zip(floats, grads[len(trainable) :], strict=True)}
    return {**found, **_flat(label, "gradient with respect to input", inputs_grads)}


def _weighted(leaf: Any) -> Any:
    size = int(np.prod(leaf.shape))
    weights = np.cos(np.arange(size, dtype=np.float32)).reshape(leaf.shape)
    return keras.ops.sum(keras.ops.cast(leaf, "float32") * weights)


def _is_float(leaf: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype))


def _served(layer: Any, job: Job) -> dict[str, Any]:
    """What TensorFlow serves without JAX, named like the outputs at inference that it must equal."""
    assert job.export_to is not None
    report = export_saved_model(_model(layer, job), job.export_to, verify=False)
    served = serve_without_jax(
        job.export_to,
        [dict(zip(report.inputs, keras.tree.flatten(inputs), strict=True)) for _, inputs in job.cases],
    )
    found: dict[str, Any] = {}
    for (label, inputs), outputs in zip(job.cases, served, strict=True):
        wanted = _inference(layer, label, inputs)
        for key, name in zip(wanted, report.outputs, strict=True):
            found[f"served without JAX: {key}"] = outputs[name]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
