"""Equinox modules as PureModels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxbridge._optional import require
from jaxbridge.adapters import flags
from jaxbridge.adapters.axes import unbound_axis
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, named_method
from jaxbridge.adapters.calls import MethodCall, fill_keys
from jaxbridge.adapters.draws import with_found_streams
from jaxbridge.core import prng
from jaxbridge.core.pure_model import CallInputs, PureModel
from jaxbridge.core.tree_paths import leaf_paths
from jaxbridge.errors import SignatureError, StructureError

require("equinox", "An equinox module")

import equinox as eqx  # noqa: E402

#: The stream is called as the argument is.
STREAM = "key"

#: The axis of examples, where the module does not call it otherwise.
_AXIS = "batch"


class EquinoxAdapter(Adapter):
    """Modules of `equinox`; or a class, whose module is made with the layer's seed (its argument `key`).

    Params are the floating arrays of the module by their paths, the state is its other arrays and, of a module whose
    method takes `state`, the values of its `eqx.nn.StateIndex`es by the paths of these; `variables` is the `eqx.nn.State`
    that belongs to an instance. With `vmap` the module is mapped over axis 0 of the inputs, under the name that the module
    has for this axis ("batch"); example i draws with `fold_in(key, i)`.
    """

    library: ClassVar[str] = "equinox"
    options: ClassVar[frozenset[str]] = Adapter.options | {"args", "kwargs", "variables", "rngs", "vmap"}

    def handles(self, module: Any) -> bool:
        return isinstance(module, eqx.Module) or (isinstance(module, type) and issubclass(module, eqx.Module))

    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        if isinstance(module, type):
            construct = functools.partial(_construct, module, options)
            layout = _Layout.of(*eqx.filter_eval_shape(construct, jax.random.key(0)))
            init = lambda key, inputs, training: layout.split(*construct(key))
            return Adapted(_EquinoxModel(module, layout, options).pure_model(init))
        if options.args or options.kwargs:
            raise SignatureError("`args` and `kwargs` are those of a class; the module is made already.")
        state = options.variables
        if state is not None and not isinstance(state, eqx.nn.State):
            raise SignatureError(
                f"`variables` of an Equinox module must be its eqx.nn.State, got {type(state).__name__}."
            )
        layout = _Layout.of(module, state)
        return Adapted(_EquinoxModel(type(module), layout, options).pure_model(None), layout.split(module, state))

    def construction(self, module: Any) -> tuple[type, dict[str, Any]]:
        names = [field.name for field in dataclasses.fields(module)]
        return type(module), {name: getattr(module, name) for name in names if hasattr(module, name)}

    def reconstruct(self, cls: type, fields: dict[str, Any]) -> Any:
        # As unflattening does: `__init__` would make other arrays, and may take other arguments.
        module = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(module, name, value)
        return module


def _construct(cls: type, options: ModuleOptions, key: Any) -> tuple[Any, Any]:
    """Returns a new module of the class and its state (an empty one if it has none)."""
    words = dict(options.kwargs)
    if "key" in flags.parameters_of(cls) and "key" not in words:
        words["key"] = key
    flags.check_arguments(cls, options.args, words)
    return eqx.nn.make_with_state(cls)(*options.args, **words)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where the arrays of a module and its state are.

    Attributes:
        treedef: of the module.
        kinds: of each leaf of the module: "params", "buffers", or None for what is no array.
        names: the path of each leaf.
        rest: the leaves that are no arrays.
        state_treedef: of the `eqx.nn.State`; None without one.
        state_names: a name for each leaf of it.
    """

    treedef: Any
    kinds: tuple[str | None, ...]
    names: tuple[str, ...]
    rest: tuple[Any, ...]
    state_treedef: Any
    state_names: tuple[str, ...]

    @classmethod
    def of(cls, module: Any, state: Any) -> _Layout:
        leaves, treedef = jax.tree.flatten(module)
        kinds = tuple(map(_kind, leaves))
        rest = tuple(None if kind else leaf for kind, leaf in zip(kinds, leaves, strict=True))
        count = 0 if state is None else len(jax.tree.leaves(state))
        state_treedef = jax.tree.structure(state) if count else None
        names = _state_names(module, jax.tree.unflatten(state_treedef, range(count))) if count else ()
        return cls(treedef, kinds, tuple(leaf_paths(module)), rest, state_treedef, names)

    def split(self, module: Any, state: Any) -> tuple[Any, Any]:
        """Returns params and state as dicts by path."""
        leaves = jax.tree.leaves(module)
        return self._part(leaves, "params"), self._with_state(self._part(leaves, "buffers"), state)

    def _with_state(self, buffers: Any, state: Any) -> dict[str, Any]:
        if self.state_treedef is None:
            return buffers
        return {**buffers, **dict(zip(self.state_names, jax.tree.leaves(state), strict=True))}

    def _part(self, leaves: Sequence[Any], wanted: str) -> dict[str, Any]:
        triples = zip(self.names, self.kinds, leaves, strict=True)
        return {name: leaf for name, kind, leaf in triples if kind == wanted}

    def merge(self, params: Any, state: Any) -> tuple[Any, Any]:
        """Returns the module and the `eqx.nn.State` (None without one) of these values."""
        parts = {"params": params, "buffers": state}
        triples = zip(self.names, self.kinds, self.rest, strict=True)
        module = jax.tree.unflatten(self.treedef, [parts[k][name] if k else rest for name, k, rest in triples])
        if self.state_treedef is None:
            return module, None
        return module, jax.tree.unflatten(self.state_treedef, [state[name] for name in self.state_names])


class _EquinoxModel:
    def __init__(self, cls: type, layout: _Layout, options: ModuleOptions):
        self.cls, self.layout, self.options = cls, layout, options
        self.said = options.streams()
        if any(name != STREAM for name in self.said.named):
            raise SignatureError(
                f"`rngs` names {', '.join(self.said.named)}; an Equinox module has one stream, '{STREAM}'."
            )
        self.method = named_method(cls, options.method)
        parameters = flags.parameters_of(self.method)
        self.takes = {name: name in parameters for name in (STREAM, "state")}
        if layout.state_treedef is not None and not self.takes["state"]:
            raise SignatureError(
                f"The module has state, and its method takes no argument `state`: {self.method.__qualname__}."
            )
        # Equinox' own layers take the old name beside the new one, and warn when it is used.
        found = flags.of_signature(self.method, options, ("deterministic",) if "inference" in parameters else ())
        filled = (*((STREAM,) if self.takes[STREAM] else ()), *(("state",) if layout.state_treedef is not None else ()))
        self.call = MethodCall(self.method, options, found, ignored=filled)

    def pure_model(self, init: Any) -> PureModel:
        layout = self.layout
        model = PureModel(
            init,
            self.apply,
            (STREAM,),
            self.said.always,
            self.call.takes_mask,
            identity=(
                "equinox",
                layout.treedef,
                layout.kinds,
                layout.rest,
                layout.state_treedef,
                self.options.without_start(),
            ),
        )
        return dataclasses.replace(model, resolve=functools.partial(self.resolve, model))

    def apply(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        module, own_state = self.layout.merge(params, state)
        module = self._in_mode(module, training)
        # Only what the call itself brings is mapped.
        words = self.call.keywords(dataclasses.replace(inputs, mask=None), training)
        words = {name: value for name, value in words.items() if name not in inputs.kwargs}
        names = self.call.key_arguments(inputs)

        def call(args: Any, kwargs: Any, mask: Any, own_state: Any, key: Any) -> tuple[Any, Any]:
            extra = fill_keys(names, prng.stream_keys(key, names))
            if self.takes[STREAM] and key is not None:
                extra[STREAM] = key
            if mask is not None:
                extra["mask"] = mask
            if own_state is None:
                return self.method(module, *args, **{**words, **kwargs, **extra}), None
            return self.method(module, *args, **{**words, **kwargs, **extra}, state=own_state)

        outputs, after = self._mapped(call)(inputs.args, inputs.kwargs, inputs.mask, own_state, key)
        if own_state is None:
            return outputs, state
        return outputs, {**state, **self.layout._with_state({}, after)}

    def resolve(self, model: PureModel, params: Any, state: Any, inputs: CallInputs) -> PureModel:
        """Returns the model with its stream, if calls read a key."""
        takes = self.takes[STREAM] or self.call.key_arguments(inputs)
        return with_found_streams(model, (STREAM,) if takes else (), self.said, params, state, inputs)

    def _mapped(self, call: Any) -> Any:
        """Returns the call of an example as one of a batch, if the module takes examples."""

        def whole(*given: Any) -> Any:
            try:
                return call(*given)
            except Exception as error:
                if _works(mapped, given):
                    raise SignatureError(
                        f"{self.cls.__name__} takes single examples, and was called with a batch. Write `vmap=True`: it is "
                        "then mapped over axis 0."
                    ) from error
                raise

        def mapped(args: Any, kwargs: Any, mask: Any, own_state: Any, key: Any) -> Any:
            given = (args, kwargs, mask)
            keys = None if key is None else jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(_batch(given)))
            over = lambda axis: jax.vmap(call, (0, 0, 0, None, 0), (0, None), axis_name=axis)(*given, own_state, keys)
            try:
                return over(_AXIS)
            except NameError as error:
                name = unbound_axis(error)
                if name is None:
                    raise
            return over(name)

        return mapped if self.options.vmap else whole

    def _in_mode(self, module: Any, training: bool) -> Any:
        asked = flags.asked_for(self.options.training_flag)
        if asked is None:
            return eqx.nn.inference_mode(module, value=not training)
        found = set(self.call.flags)
        for name, pair in asked.items():
            where = lambda root, name=name: [getattr(p, name) for p in _parts(root) if hasattr(p, name)]
            if where(module):
                value = pair[0 if training else 1]
                module = eqx.tree_at(where, module, replace_fn=lambda _, v=value: v, is_leaf=lambda x: x is None)
                found.add(name)
        flags.check_all_found(self.options, found, self.cls.__name__)
        return module


def _kind(leaf: Any) -> str | None:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return None
    return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "buffers"


def _parts(module: Any) -> Iterator[Any]:
    """Yields a module and all modules in it."""
    yield module
    for child in jax.tree.leaves(module, is_leaf=lambda node: node is not module and isinstance(node, eqx.Module)):
        if isinstance(child, eqx.Module):
            yield from _parts(child)


def _state_names(module: Any, numbered: Any) -> tuple[str, ...]:
    """Returns a name for every leaf of an `eqx.nn.State` whose leaves are their numbers: the path of its index."""
    is_index = lambda node: isinstance(node, eqx.nn.StateIndex)
    names: dict[int, str] = {}
    pairs = jax.tree_util.tree_flatten_with_path(module, is_leaf=is_index)[0]
    for path, index in pairs:
        if is_index(index):
            where = jax.tree_util.keystr(path, simple=True, separator="/")
            value = numbered.get(index)
            for name, number in zip(leaf_paths(value, where), jax.tree.leaves(value), strict=True):
                names.setdefault(number, name)
    count = len(jax.tree.leaves(numbered))
    if len(names) != count:
        raise StructureError(
            "The eqx.nn.State is not that of this module: pass the two that `make_with_state` returns."
        )
    return tuple(names[number] for number in range(count))


def _works(call: Any, given: Any) -> bool:
    """Returns whether a call of known sizes can be traced."""
    if not all(isinstance(size, int) for leaf in jax.tree.leaves(given[:3]) for size in leaf.shape):
        return False  # at symbols much fails that is right
    try:
        jax.eval_shape(lambda: call(*given))
    except Exception:
        return False
    return True


def _batch(given: Any) -> Any:
    return jax.tree.leaves(given)[0].shape[0]
