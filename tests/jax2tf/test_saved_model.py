"""A converted function saved, loaded where JAX cannot be imported, run and differentiated."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import jax2tf
from tests.jax2tf.cases import FORWARD, GRADIENT, Case, arguments
from tests.jax2tf.helpers import GRADIENT_TOLERANCE, TOLERANCE, concrete, polymorphic, run_python
from tests.jax2tf.test_gradients import jax_gradients

WITH_GRADIENT = [
    "mlp",
    "custom_vjp",
    "custom_jvp",
    "scan",
    "cond",
    "remat_dots",
    "remat_dropout",
    "unused",
    "integer_input",
]
WITHOUT = ["while", "fori_symbolic"]
CASES = {name: GRADIENT[name] for name in WITH_GRADIENT} | {name: FORWARD[name] for name in WITHOUT}
BATCHES = (3, 2)

SERVE = """
    import json, sys, numpy as np, tensorflow as tf
    folder = sys.argv[1]
    given, returned, said = np.load(folder + "/inputs.npz"), {}, {}
    for name in sys.argv[2:]:
        module = tf.saved_model.load(folder + "/" + name)
        for batch in (3, 2):
            keys = sorted(k for k in given.files if k.startswith(f"{name}/{batch}/"))
            args = [tf.constant(given[key]) for key in keys]
            floats = [a for a in args if a.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(floats)
                outs = [o for o in tf.nest.flatten(module.f(*args)) if o.dtype.is_floating]
                loss = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in outs])
            returned[f"{name}/{batch}/out"] = outs[0].numpy()
            try:
                grads = tape.gradient(loss, floats, unconnected_gradients="zero")
            except Exception as error:
                said[name] = str(error)
            else:
                for index, grad in enumerate(grads):
                    returned[f"{name}/{batch}/grad{index}"] = grad.numpy()
    assert not any(module.split(".")[0] in ("jax", "jaxlib", "jaxbridge") for module in sys.modules)
    np.savez(folder + "/outputs.npz", **returned)
    print(json.dumps(said))
"""


def inputs(case: Case, batch: int) -> list[np.ndarray]:
    return arguments(case, batch, seed=batch)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What the loaded functions return in a process without JAX, and what they say when they have no gradient."""
    folder = tmp_path_factory.mktemp("saved")
    given = {}
    for name, case in CASES.items():
        module = tf.Module()
        module.f = concrete(jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case)), case, known_batch=False)
        tf.saved_model.save(
            module, folder / name, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        )
        for batch in BATCHES:
            given |= {f"{name}/{batch}/{index}": arg for index, arg in enumerate(inputs(case, batch))}
    np.savez(folder / "inputs.npz", **given)
    printed = run_python(SERVE, folder, *CASES, without=("jax", "jaxlib", "flax", "jaxbridge"))
    with np.load(folder / "outputs.npz") as outputs:
        return dict(outputs), json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", list(CASES))
def test_values(served: Any, name: str, batch: int):
    import jax

    want = jax.tree.leaves(CASES[name].fn(*inputs(CASES[name], batch)))[0]
    np.testing.assert_allclose(served[0][f"{name}/{batch}/out"], want, **TOLERANCE)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients(served: Any, name: str, batch: int):
    want = jax_gradients(CASES[name].fn, inputs(CASES[name], batch), 1)
    for index, gradient in enumerate(want):
        np.testing.assert_allclose(served[0][f"{name}/{batch}/grad{index}"], gradient, **GRADIENT_TOLERANCE[1])


@pytest.mark.parametrize("name", WITHOUT)
def test_says_why_there_is_no_gradient(served: Any, name: str):
    assert "JAX cannot differentiate this function" in served[1][name]


def modules_in(path: Path) -> list[int]:
    """Sizes of the modules in a SavedModel, in bytes."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    return [len(n.attr["module"].s) for f in functions for n in f.node_def if n.op == "XlaCallModule"]


@pytest.mark.parametrize(("gradients", "count"), [(False, 1), (True, 2)])
def test_number_of_modules(tmp_path: Path, gradients: bool, count: int):
    """The function, and with gradients one backward pass: of the first order, once."""
    case = GRADIENT["mlp"]
    module = tf.Module()
    module.f = concrete(jax2tf.convert(case.fn, polymorphic_shapes=polymorphic(case)), case, known_batch=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=gradients)
    tf.saved_model.save(module, tmp_path, options=options)
    assert len(modules_in(tmp_path)) == count
