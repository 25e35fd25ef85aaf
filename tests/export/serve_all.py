"""Loads SavedModels in a process without JAX and writes what they give. Run by path; imports no test and no jaxbridge.

Arguments: a folder with a SavedModel `<name>/` and its inputs `<name>.npz` (`<call>/<input>`) per model. Writes
`<name>.out.npz` with `<call>/<output>`, gradients `grad/<variable>` of the sum of the squares of the float outputs of call 0
with respect to the trainable variables, and `<name>.json` with facts about the loaded model.
"""

import importlib.abc
import json
import sys
from pathlib import Path

BLOCKED = ("jax", "jaxlib", "flax", "jaxbridge")


class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(fullname, name=fullname)


sys.meta_path.insert(0, Blocker())
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def as_numpy(value):
    if value.dtype == tf.string:
        return value.numpy().astype(bytes)
    return tf.cast(value, tf.float32).numpy() if value.dtype == tf.bfloat16 else value.numpy()


def with_gradients(signature, tensors, trainable):
    with tf.GradientTape() as tape:
        outputs = signature(**tensors)
        loss = tf.add_n([tf.reduce_sum(tf.cast(y, tf.float32) ** 2) for y in outputs.values() if y.dtype.is_floating])
    gradients = tape.gradient(loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    named = zip([v.name.removesuffix(":0") for v in trainable], gradients, strict=True)
    return outputs, {f"grad/{name}": as_numpy(tf.convert_to_tensor(gradient)) for name, gradient in named}


def serve(folder: Path, name: str) -> None:
    loaded = tf.saved_model.load(str(folder / name))
    signature = loaded.signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    given, found = np.load(folder / f"{name}.npz"), {}
    facts = {
        "inputs": {key: [spec.shape.as_list(), spec.dtype.name] for key, spec in specs.items()},
        "variables": {v.name.removesuffix(":0"): [v.trainable, v.dtype.name] for v in loaded.model_variables},
        "signatures": list(loaded.signatures),
    }
    calls = list(dict.fromkeys(key.split("/")[0] for key in given.files))
    trainable = [v for v in loaded.model_variables if v.trainable]
    for call in calls:
        tensors = {key: tf.cast(tf.constant(given[f"{call}/{key}"]), spec.dtype) for key, spec in specs.items()}
        outputs = None
        if call == calls[0] and trainable:
            try:
                outputs, gradients = with_gradients(signature, tensors, trainable)
                found |= gradients
            except LookupError as error:
                facts["gradient_error"] = str(error)
        outputs = signature(**tensors) if outputs is None else outputs
        found |= {f"{call}/{key}": as_numpy(value) for key, value in outputs.items()}
    np.savez(folder / f"{name}.out.npz", **found)
    (folder / f"{name}.json").write_text(json.dumps(facts))


for file in sorted(Path(sys.argv[1]).glob("*.npz")):
    serve(file.parent, file.stem)
assert not any(module.split(".")[0] in BLOCKED for module in sys.modules)
