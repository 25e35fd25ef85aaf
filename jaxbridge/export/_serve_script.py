"""Runs a SavedModel in a process that cannot import JAX. Started by path, with `-P`; imports nothing of jaxbridge.

Arguments: the SavedModel's directory, an .npz file with the inputs, the name of the signature, an .npz file to write.
Inputs are named "<call>/<input>", outputs are written as "<call>/<output>"; calls run in order, as the state may change. A
mistake of the caller is written to the name of the outputs with ".mistake" behind it.
"""

import importlib.abc
import sys

BLOCKED = ("jax", "jaxlib", "flax", "haiku", "equinox", "jaxbridge")


class _Mistake(Exception):
    """Something that whoever started this process did wrong."""


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

    signatures = tf.saved_model.load(directory).signatures
    if signature not in signatures:
        raise _Mistake(f"It has no signature '{signature}'; it has {sorted(signatures)}.")
    serve = signatures[signature]
    specs = serve.structured_input_signature[1]
    given = np.load(inputs_file)
    outputs = {}
    for call in dict.fromkeys(name.split("/", 1)[0] for name in given.files):
        arguments = {name.split("/", 1)[1]: given[name] for name in given.files if name.split("/", 1)[0] == call}
        if arguments.keys() != specs.keys():
            raise _Mistake(f"Signature '{signature}' has the inputs {sorted(specs)} and was given {sorted(arguments)}.")
        for name, value in _served(tf, serve, specs, arguments).items():
            # numpy's file format has no bfloat16; float32 holds all its values.
            value = tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value
            array = np.asarray(value.numpy())
            outputs[f"{call}/{name}"] = array.astype(bytes) if value.dtype == tf.string else array
    assert not any(name.split(".")[0] in BLOCKED for name in sys.modules)
    np.savez(outputs_file, **outputs)


def _served(tf, serve, specs, arguments):
    for name, value in arguments.items():
        if not specs[name].shape.is_compatible_with(value.shape):
            raise _Mistake(f"Input '{name}' has the shape {specs[name].shape} and was given {value.shape}.")
        if (specs[name].dtype == tf.string) != (value.dtype.kind in "USO"):
            raise _Mistake(f"Input '{name}' is {specs[name].dtype.name} and was given {value.dtype.name}.")
    tensors = {name: tf.cast(tf.constant(value), specs[name].dtype) for name, value in arguments.items()}
    try:
        return serve(**tensors)
    except tf.errors.OpError as error:
        raise _Mistake(f"{type(error).__name__}: {error.message}") from error


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except _Mistake as mistake:
        # In a file of its own: TensorFlow logs to stderr, also where nothing is wrong.
        with open(f"{sys.argv[-1]}.mistake", "w", encoding="utf-8") as file:
            file.write(str(mistake))
        sys.exit(1)
