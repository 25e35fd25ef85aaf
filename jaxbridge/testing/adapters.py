"""One call that tests whether an adapter keeps the laws that `jaxbridge.adapters.Adapter` states."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbridge.adapters import Adapted, Adapter, ModuleOptions
from jaxbridge.core import prng
from jaxbridge.core.canonical import canonical_key
from jaxbridge.core.constraints import without_annotations
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.tree_paths import is_array, leaf_difference, leaf_paths
from jaxbridge.errors import StructureError
from jaxbridge.layers import saving


@dataclasses.dataclass(frozen=True)
class AdapterCase:
    """A module and what it is called with.

    Attributes:
        module: makes the module: called anew for each law, so that a module that was changed is found.
        inputs: the positional inputs, a tuple of pytrees of numpy arrays whose axis 0 is the batch.
        options: as a layer would give them.
        expected: `expected(module, params, state, inputs) -> outputs` at inference, by the library itself; None if there is
            nothing to compare with.
        unknown_batch: whether the module can be traced with an unknown batch.
        is_saved: whether `construction` has something to return.
    """

    module: Callable[[], Any]
    inputs: tuple[Any, ...]
    options: ModuleOptions = dataclasses.field(default_factory=ModuleOptions)
    expected: Callable[..., Any] | None = None
    unknown_batch: bool = True
    is_saved: bool = True


class LawBroken(AssertionError):
    """An adapter does not keep a law; the message names the law and what was found."""


def check_adapter(adapter: Adapter, cases: Sequence[AdapterCase], *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Tests an adapter against every law of `jaxbridge.adapters.Adapter`, for every case.

    Needs no Keras layer: what an adapter returns is tested as it is.

    Args:
        adapter: the adapter.
        cases: at least one module; include one with state and one that draws, if the library has such.
        rtol: allowed difference, relative, between a compiled and an interpreted call.
        atol: allowed absolute difference.

    Raises:
        LawBroken: (an AssertionError) with the number of the law.

    Example:
        >>> import flax.linen as nn, numpy as np
        >>> from jaxbridge.adapters.linen import LinenAdapter
        >>> from jaxbridge.testing import AdapterCase, check_adapter
        >>> check_adapter(LinenAdapter(), [AdapterCase(lambda: nn.Dense(2), (np.ones((3, 4), "float32"),))])
    """
    if not cases:
        raise ValueError("`cases` must hold at least one module.")
    for stranger in (None, 1, "module", object(), object, [], {}):
        _law(1, not adapter.handles(stranger), f"handles({stranger!r}) is true")
    for case in cases:
        checked = _Checked(adapter, case, rtol, atol)
        for law in LAWS:
            law(checked)


class _Checked:
    """A case with its model, params and state."""

    def __init__(self, adapter: Adapter, case: AdapterCase, rtol: float, atol: float):
        self.adapter, self.case, self.rtol, self.atol = adapter, case, rtol, atol
        self.module = case.module()
        _law(1, adapter.handles(self.module), f"handles({self.module!r:.60}) is false")
        self.before = _text(self.module)
        self.inputs = CallInputs(case.inputs)
        self.adapted = adapter.adapt(self.module, case.options)
        self.params, self.state = self.start(self.adapted)
        self.model = self.resolved(self.adapted.model)

    def start(self, adapted: Adapted, seed: int = 0) -> tuple[Any, Any]:
        if adapted.start != (None, None) or adapted.model.init is None:
            return without_annotations(adapted.start)
        made = jax.jit(lambda key: adapted.model.init(key, self.inputs, True))(jax.random.key(seed))  # pyright: ignore[reportOptionalCall]
        return without_annotations(made)

    def resolved(self, model: PureModel) -> PureModel:
        if model.resolve is None:
            return model
        return model.resolve(*jax.eval_shape(lambda: (self.params, self.state, self.inputs)))

    def key(self, training: bool, seed: int = 1) -> Any:
        return jax.random.key(seed) if self.model.streams(training) else None

    def apply(self, training: bool, key: Any, jit: bool = True) -> tuple[Any, Any]:
        run = lambda p, s, k, i: self.model.apply(p, s, k, i, training)
        return (jax.jit(run) if jit else run)(self.params, self.state, key, self.inputs)

    def close(self, first: Any, second: Any) -> bool:
        pairs = zip(_numbers(first), _numbers(second), strict=True)
        return all(np.allclose(a, b, self.rtol, self.atol, equal_nan=True) for a, b in pairs)


def _initialisation_is_a_function(c: _Checked) -> None:
    again = c.start(c.adapter.adapt(c.case.module(), c.case.options))
    _law(3, leaf_difference((c.params, c.state), again) is None, "two initialisations differ in their structure")
    _law(3, c.close((c.params, c.state), again), "two initialisations with one key give different values")


def _paths_are_distinct(c: _Checked) -> None:
    for tree, scope in zip((c.params, c.state), c.adapted.scopes, strict=True):
        for path, leaf in zip(leaf_paths(tree, scope), jax.tree.leaves(tree), strict=True):
            _law(4, is_array(leaf) or isinstance(leaf, str) or callable(leaf), f"'{path}' is a {type(leaf).__name__}")
    paths = [path for t, s in zip((c.params, c.state), c.adapted.scopes, strict=True) for path in leaf_paths(t, s)]
    _law(4, len(paths) == len(set(paths)), f"a path is there twice: {sorted(paths)}")


def _apply_is_pure(c: _Checked) -> None:
    for training in (False, True):
        key = c.key(training)
        compiled, again = c.apply(training, key), c.apply(training, key)
        mode = "training" if training else "inference"
        _law(5, c.close(compiled, again), f"two calls with the same arguments differ ({mode})")
        _law(5, c.close(compiled, c.apply(training, key, jit=False)), f"jax.jit changes the result ({mode})")


def _state_keeps_its_form(c: _Checked) -> None:
    for training in (False, True):
        difference = leaf_difference(c.state, c.apply(training, c.key(training))[1])
        _law(6, difference is None, f"training={training}: {difference}")


def _inference_needs_no_key(c: _Checked) -> None:
    if not c.model.inference_streams:
        with _no_error(7, "a call at inference without a key fails"):
            c.apply(False, None)


def _draws_follow_the_key(c: _Checked) -> None:
    if c.model.rng_streams:
        first, second = (c.apply(True, c.key(True, seed)) for seed in (1, 2))
        _law(8, not c.close(first, second), f"streams {c.model.rng_streams} are named, and other keys change nothing")
    else:
        first, second = c.apply(True, None), c.apply(True, jax.random.key(5))
        _law(8, c.close(first, second), "no stream is named, and a key changes the result")


def _batch_may_be_unknown(c: _Checked) -> None:
    if not c.case.unknown_batch:
        return
    (batch,) = jax.export.symbolic_shape("b")
    struct = lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype)
    run = lambda p, s, i: c.model.apply(p, s, None if c.key(False) is None else jax.random.key(0), i, False)
    with _no_error(9, "the model cannot be traced with an unknown batch"):
        jax.eval_shape(run, c.params, c.state, jax.tree.map(struct, c.inputs))


def _gradients_are_finite(c: _Checked) -> None:
    leaves, treedef = jax.tree.flatten(c.params)
    floats = [index for index, leaf in enumerate(leaves) if _is_float(leaf)]

    def loss(values: list[Any]) -> Any:
        merged = list(leaves)
        for index, value in zip(floats, values, strict=True):
            merged[index] = value
        outputs = c.model.apply(treedef.unflatten(merged), c.state, c.key(True), c.inputs, True)[0]
        outputs = outputs.outputs if isinstance(outputs, WithLosses) else outputs
        return sum(jnp.sum(out) for out in jax.tree.leaves(outputs) if _is_float(out))

    for index, gradient in zip(floats, jax.jit(jax.grad(loss))([leaves[i] for i in floats]), strict=True):
        path = leaf_paths(c.params)[index]
        _law(10, bool(np.isfinite(np.asarray(gradient)).all()), f"the gradient of '{path}' is not finite")


def _identity_is_equal(c: _Checked) -> None:
    keys = [canonical_key(c.adapter.adapt(c.module, c.case.options).model.identity) for _ in range(2)]
    _law(11, keys[0] == keys[1], "two models of one module have different keys")


def _construction_makes_it_again(c: _Checked) -> None:
    if not c.case.is_saved:
        try:
            saving.pack(c.module, "the module")
        except StructureError as error:
            _law(12, "register" in str(error), f"the error does not say what to do: {error}")
            return
        raise LawBroken("Law 12: the case says that the module cannot be written, and it was.")
    module = saving.unpack(saving.pack(c.module, "the module"))
    adapted = c.adapter.adapt(module, c.case.options)
    again = c.start(adapted)
    _law(12, leaf_difference((c.params, c.state), again) is None, "the module comes back with another structure")
    if adapted.start == (None, None):
        _law(12, c.close((c.params, c.state), again), "the module comes back with other initial values")


def _result_is_that_of_the_library(c: _Checked) -> None:
    if c.case.expected is None:
        return
    outputs = c.apply(False, c.key(False))[0]
    wanted = c.case.expected(c.module, c.params, c.state, c.case.inputs)
    _law(5, c.close(outputs, wanted), "the outputs at inference are not those of the library")


def _module_is_left_alone(c: _Checked) -> None:
    _law(2, _text(c.module) == c.before, "the module was changed")


#: One function per law, in the order in which they are tested.
LAWS: tuple[Callable[[_Checked], None], ...] = (
    _initialisation_is_a_function,
    _paths_are_distinct,
    _inference_needs_no_key,
    _apply_is_pure,
    _state_keeps_its_form,
    _draws_follow_the_key,
    _batch_may_be_unknown,
    _gradients_are_finite,
    _identity_is_equal,
    _construction_makes_it_again,
    _result_is_that_of_the_library,
    _module_is_left_alone,
)


def _law(number: int, holds: bool, found: str) -> None:
    if not holds:
        raise LawBroken(f"Law {number}: {found}.")


@contextlib.contextmanager
def _no_error(number: int, found: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the library raises
        raise LawBroken(f"Law {number}: {found}: {type(error).__name__}: {error}") from error


def _text(module: Any) -> str:
    """Returns what a module shows of itself, its values included."""
    return repr(module)


def _numbers(tree: Any) -> Iterator[np.ndarray]:
    for leaf in jax.tree.leaves(tree):
        if prng.is_typed_key(leaf):
            leaf = jax.random.key_data(leaf)
        if is_array(leaf):
            yield np.asarray(leaf)


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
