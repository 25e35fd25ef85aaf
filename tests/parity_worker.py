"""Writes what every case of the table gives on one Keras backend: `KERAS_BACKEND=... python -m tests.parity_worker FILE`."""

import sys
from typing import Any

import jax
import numpy as np

from tests import harness
from tests.cases import CASES, Case


def results(case: Case) -> dict[str, Any]:
    layer = harness.built(case, batch=4)  # one batch size all along: JAX compiles for each
    args = case.args(4, 8)
    found = {
        "initial": harness.values_of(layer),
        "inference": harness.numbers(layer(*args)),
        "gradients": harness.layer_gradients(layer, args, False),
        "training": [harness.numbers(layer(*args, training=True)) for _ in range(2)],
        "state": harness.numbers(layer.state),
        "seed": [] if layer.seed_generator is None else harness.numbers(layer.seed_generator.state).tolist(),
    }
    if layer.trainable_variables:
        trained = case.layer()
        harness.fit(case.functional(trained), case.model_input(12))
        found["fitted"] = harness.values_of(trained)
    return found


def main(path: str) -> None:
    arrays = {}
    for case in CASES:
        for keys, leaf in jax.tree_util.tree_flatten_with_path(results(case))[0]:
            arrays[f"{case.name}: {jax.tree_util.keystr(keys)}"] = np.asarray(leaf)
    # Keys hold characters that the members of an npz cannot.
    np.savez(path, **{str(index): array for index, array in enumerate(arrays.values())}, names=np.array(list(arrays)))


if __name__ == "__main__":
    main(sys.argv[1])
