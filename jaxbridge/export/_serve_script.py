"""Runs a SavedModel in a process that cannot import JAX. Started by path, with `-P`; imports nothing of jaxbridge.

Arguments: the SavedModel's directory, an .npz file with the inputs, the name of the signature, an .npz file to write.
Inputs are named "<call>/<input>", outputs are written as "<call>/<output>"; calls run in order, as the state may change.
"""

import importlib.abc
import sys

BLOCKED = ("jax", "jaxlib", "flax", "haiku", "equinox", "jaxbridge")


class _Blocker(importlib.abc.MetaPathFinder):
    # `import tensorflow` imports jax where it is installed (through tensorflow.lite), so its absence must be made.
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named '{fullname}' (blocked)", name=fullname)
        return None


def main(directory: str, inputs_file: str, signature: str, outputs_file: str) -> None:
    sys.meta_path.insert(0, _Blocker())
    import numpy as np
    import tensorflow as tf

    serve = tf.saved_model.load(directory).signatures[signature]
    specs = serve.structured_input_signature[1]
    given = np.load(inputs_file)
    outputs = {}
    for call in dict.fromkeys(name.split("/", 1)[0] for name in given.files):
        arguments = {name.split("/", 1)[1]: given[name] for name in given.files if name.split("/", 1)[0] == call}
        if arguments.keys() != specs.keys():
            sys.exit(f"Signature '{signature}' has the inputs {sorted(specs)} and was given {sorted(arguments)}.")
        tensors = {name: tf.cast(tf.constant(value), specs[name].dtype) for name, value in arguments.items()}
        for name, value in serve(**tensors).items():
            # numpy's file format has no bfloat16; float32 holds all its values.
            value = tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value
            array = np.asarray(value.numpy())
            outputs[f"{call}/{name}"] = array.astype(bytes) if value.dtype == tf.string else array
    assert not any(name.split(".")[0] in BLOCKED for name in sys.modules)
    np.savez(outputs_file, **outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
