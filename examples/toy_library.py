"""An adapter for a module library, all in one file: a toy library, its adapter, a layer that is trained and saved.

    python examples/toy_library.py

A library of one's own would have the class `ToyAdapter` in its package, and name it in its pyproject.toml:

    [project.entry-points."jaxbridge.adapters"]
    toy_library = "toy_library.keras:ToyAdapter"
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import jaxbridge
from jaxbridge.adapters import Adapted, Adapter, ModuleOptions, register
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.testing import AdapterCase, check_adapter

# The library: modules have sizes, parameters are made and used by two methods.


class ToyModule:
    """Base class of the toy library."""

    def initial(self, key: jax.Array) -> Any:
        raise NotImplementedError

    def run(self, params: Any, x: jax.Array) -> jax.Array:
        raise NotImplementedError


class Affine(ToyModule):
    def __init__(self, inputs: int, outputs: int):
        self.inputs, self.outputs = inputs, outputs

    def initial(self, key):
        return {"weight": jax.random.normal(key, (self.inputs, self.outputs)), "bias": jnp.zeros(self.outputs)}

    def run(self, params, x):
        return x @ params["weight"] + params["bias"]


# The adapter.


class ToyAdapter(Adapter):
    library = __name__  # where the base class of the modules is defined
    options = frozenset()  # nothing but the module

    def handles(self, module: Any) -> bool:
        return isinstance(module, ToyModule)

    def adapt(self, module: ToyModule, options: ModuleOptions) -> Adapted:
        def init(key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
            return module.initial(key), {}

        def apply(params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
            return module.run(params, *inputs.args), state

        return Adapted(PureModel(init, apply, identity=(type(module), vars(module))))

    def construction(self, module: ToyModule) -> tuple[type, dict[str, Any]]:
        return type(module), dict(vars(module))

    def reconstruct(self, cls: type, fields: dict[str, Any]) -> Any:
        return cls(**fields)


register(__name__, ToyAdapter)


def main() -> int:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32") + 1
    check_adapter(ToyAdapter(), [AdapterCase(lambda: Affine(3, 1), (x,))])
    model = keras.Sequential([keras.Input((3,)), jaxbridge.ModuleLayer(Affine(3, 1), name="affine")], name="toy")
    model.compile(keras.optimizers.SGD(0.1), "mse")
    loss = model.fit(x, y, epochs=50, verbose=0).history["loss"][-1]
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "toy.keras"))
        loaded = keras.models.load_model(Path(folder, "toy.keras"))
    same = np.allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    print(f"{[v.path for v in model.weights]}, loss {loss:.2e}, the same after loading: {same}")
    return 0 if loss < 1e-4 and same else 1


if __name__ == "__main__":
    raise SystemExit(main())
