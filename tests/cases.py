"""The table of models that the tests run over: a line per model."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import keras
import numpy as np

from jaxbridge import FlaxLayer, JaxLayer
from tests import models

SEED = 7

Args = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A model.

    Attributes:
        name: its name in test ids.
        layer: `layer(**kwargs)`, a new layer with the seed SEED and the name "net".
        plain: `plain(params, state, key, args, training) -> (outputs, state)` without jaxbridge: the user's function or
            a plain `module.apply`. `key` is the typed key of the draw, None outside training.
        args: `args(batch, size)`, the positional inputs of a call, of numpy arrays; `size` is every other unknown size.
        unknown: the axes of unknown size, of every input.
        has_state: whether a training call changes a state.
        draws: whether a training call draws.
        empty: whether the plain function itself works on 0 rows (`reshape(0, -1, 4)` divides by zero).
        reference_init: `reference_init(key, args) -> (params, state)`; None where params are given.
    """

    name: str
    layer: Callable[..., Any]
    plain: Callable[[Any, Any, Any, Args, bool], tuple[Any, Any]]
    args: Callable[[int, int], Args]
    unknown: tuple[int, ...] = (0,)
    has_state: bool = False
    draws: bool = False
    empty: bool = True
    reference_init: Callable[[Any, Args], tuple[Any, Any]] | None = None

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def reference(self) -> Callable[[Any, Any, Any, Args, bool], tuple[Any, Any]]:
        """`plain`, compiled: op by op it would take most of the tests' time."""
        return jax.jit(self.plain, static_argnums=4)

    def symbolic_args(self) -> Args:
        """Returns `keras.Input`s with the case's unknown sizes."""
        return jax.tree.map(
            lambda array: keras.KerasTensor(
                tuple(None if axis in self.unknown else size for axis, size in enumerate(array.shape)), array.dtype.name
            ),
            self.args(2, 8),
        )

    def functional(self, layer: Any) -> keras.Model:
        """Returns a functional model of the layer alone."""
        inputs = jax.tree.map(
            lambda tensor: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype), self.symbolic_args()
        )
        return keras.Model(inputs[0] if len(inputs) == 1 else inputs, layer(*inputs))

    def model_input(self, batch: int, size: int = 8) -> Any:
        """Returns an input of the functional model."""
        args = self.args(batch, size)
        return args[0] if len(args) == 1 else args


def draw_key(n: int, seed: int = SEED) -> jax.Array:
    """Returns the key of draw number n, by the rule."""
    return jax.random.fold_in(jax.random.key(seed), n)


def init_key(seed: int = SEED) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"init"))


def stream_key(key: jax.Array, name: str) -> jax.Array:
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def of_functions(name: str, call: Any, init: Any, args: Any, unknown=(0,), options=None, **facts: Any) -> Case:
    """Returns the case of a JaxLayer; which arguments `call` takes is written out here, not asked of the library."""
    takes = call.__code__.co_varnames[: call.__code__.co_argcount]

    def values(key, args, training, **more):
        rng = None if key is None else jax.random.key_data(key)
        return {"rng": rng, "inputs": args[0], "training": training, **more}

    def plain(params, state, key, args, training):
        given = values(key, args, training, params=params, state=state)
        result = call(**{name: given[name] for name in takes})
        return result if "state" in takes else (result, state)

    def reference_init(key, args):
        given = values(key, args, True)
        takes_of_init = init.__code__.co_varnames[: init.__code__.co_argcount]
        result = init(**{name: given[name] for name in takes_of_init})
        return result if "state" in takes else (result, None)

    options = options or {}
    return Case(
        name,
        lambda **kwargs: JaxLayer(call, init, **{"seed": SEED, "name": "net", **options, **kwargs}),
        plain,
        args,
        unknown,
        has_state="state" in takes,
        draws="rng" in takes,
        reference_init=None if init is None else reference_init,
        **facts,
    )


def of_module(name: str, module: nn.Module, args: Any, unknown=(0,), streams=(), training=False, state=(), **facts):
    """Returns the case of a FlaxLayer: `streams` it draws from, whether it takes `training`, its collections of state."""

    def flag(value):
        return {"training": value} if training else {}

    def plain(params, state_values, key, args, training):
        rngs = {} if key is None else {stream: stream_key(key, stream) for stream in streams}
        variables = {**params, **(state_values or {})}
        outputs, updated = module.apply(variables, *args, rngs=rngs, mutable=list(state), **flag(training))
        return outputs, flax.core.unfreeze(updated)

    def reference_init(key, args):
        rngs = {stream: stream_key(key, stream) for stream in ("params", "dropout")}
        variables = module.init(rngs, *args, **flag(True))
        return {"params": variables["params"]}, {name: variables[name] for name in state}

    draws_at_init = set(streams) <= {"dropout"}
    return Case(
        name,
        lambda **kwargs: FlaxLayer(
            module, **{"seed": SEED, "name": "net", **({} if draws_at_init else {"rngs": streams}), **kwargs}
        ),
        plain,
        args,
        unknown,
        has_state=bool(state),
        draws=bool(streams),
        **facts,
        reference_init=reference_init if draws_at_init else None,
    )


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def ids(*shape: int, below: int) -> np.ndarray:
    return np.random.default_rng([1, *shape]).integers(below, size=shape).astype("int32")


def rows(batch: int, size: int) -> Args:
    return (floats(batch, 5),)


def steps(batch: int, size: int) -> Args:
    return (floats(batch, size, 3),)


def dict_args(batch: int, size: int) -> Args:
    return ({"x": floats(batch, 5), "ids": ids(batch, 3, below=11)},)


GIVEN = {"params": {"w": floats(5, 4), "b": np.zeros(4, "float32")}}
FOURS = {"polymorphic_shapes": "(b, 4*k)", "polymorphic_constraints": ("k >= 1",)}

CASES = [
    of_functions("no_params", models.no_params_call, None, rows),
    of_functions("params", models.dense_call, models.dense_init, rows),
    of_functions("given_params", models.dense_call, None, rows, options=GIVEN),
    of_functions("state", models.counting_call, models.counting_init, rows),
    of_functions("rng", models.noisy_call, models.dense_init, rows),
    of_functions("rng_and_state", models.noisy_state_call, models.noisy_state_init, rows),
    of_functions("nested", models.nested_call, models.nested_init, rows),
    of_functions("pair", models.pair_call, models.pair_init, lambda b, s: ((floats(b, 5), floats(b, 2, seed=1)),)),
    of_functions("dicts", models.dict_call, models.dict_init, dict_args),
    of_functions(
        "fours",
        models.fours_call,
        models.fours_init,
        lambda b, s: (floats(b, s),),
        unknown=(0, 1),
        options=FOURS,
        empty=False,
    ),
    of_functions("remat", models.remat_call, models.dense_init, rows),
    of_functions("custom_vjp", models.custom_vjp_call, models.dense_init, rows),
    of_functions("loop", models.while_call, models.dense_init, rows),
    of_functions("haiku", models.haiku_call, models.haiku_init, rows),
    of_module("mlp", models.MLP(), rows),
    of_module(
        "cnn",
        models.CNN(),
        lambda b, s: (floats(b, 8, 8, 1),),
        streams=("dropout",),
        training=True,
        state=("batch_stats",),
        empty=False,
    ),
    of_module(
        "transformer",
        models.Transformer(),
        lambda b, s: (ids(b, s, below=13),),
        unknown=(0, 1),
        streams=("dropout",),
        training=True,
        state=("batch_stats",),
    ),
    of_module("lstm", models.LSTM(), steps, unknown=(0, 1)),
    of_module("image", models.ImageModel(), lambda b, s: (floats(b, s, s, 3),), unknown=(0, 1, 2)),
    of_module(
        "two_inputs",
        models.TwoInputs(),
        lambda b, s: (floats(b, 5), floats(b, 2, seed=1)),
        streams=("noise",),
        training=True,
    ),
]
BY_NAME = {case.name: case for case in CASES}
WITH_STATE = [case for case in CASES if case.has_state]
DRAWING = [case for case in CASES if case.draws]
