"""flax.nnx modules as PureModels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxbridge._optional import require
from jaxbridge.adapters import flags
from jaxbridge.adapters.axes import with_axes_bound
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, named_method
from jaxbridge.adapters.calls import MethodCall, fill_keys
from jaxbridge.adapters.draws import reads_key
from jaxbridge.core import prng
from jaxbridge.core.constraints import Annotated, rules_in_effect
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.errors import SignatureError, StructureError

require("flax.nnx", "A flax.nnx module")

from flax import nnx  # noqa: E402

#: Attributes that follow the mode wherever a module has them as a bool, besides those that `train` and `eval` set.
_ATTRIBUTES = ("training", "is_training")

#: The metadata that says how a Variable is split, and how older versions of flax spell it.
_ANNOTATIONS = ("out_sharding", "sharding", "sharding_names")

#: What becomes of a type of Variable, and of those derived from it, where the user says nothing.
_ROLES = {nnx.Param: "params", nnx.Intermediate: "drop", nnx.Variable: "state"}

#: Variables that are there after a call and not before it.
_PASSING = ("return", "loss", "drop")

Path = tuple[Any, ...]


class NNXAdapter(Adapter):
    """Modules of `flax.nnx`; or a class, whose module is made with the layer's seed.

    Params are the Variables of type `nnx.Param`, the state is all others; `collections` says otherwise by type, the
    nearest base decides. The keys and counts of the module's own streams are state, so its draws are those of plain
    NNX. If the layer has a seed they are the layer's: in draw n the stream at path P starts from
    `fold_in(fold_in(key(seed), n), crc32(P))`, P such as "dropout/rngs".
    """

    library: ClassVar[str] = "flax.nnx"
    options: ClassVar[frozenset[str]] = Adapter.options | {"args", "kwargs", "rngs", "collections"}

    def handles(self, module: Any) -> bool:
        return isinstance(module, nnx.Module) or (isinstance(module, type) and issubclass(module, nnx.Module))

    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        if isinstance(module, nnx.bridge.ToNNX):
            raise StructureError(
                "`module` is a linen module inside an NNX one (`nnx.bridge.ToNNX`), which hears neither of the mode nor of "
                "changes to its collections. Give the layer the linen module itself."
            )
        if isinstance(module, type):
            construct = functools.partial(_construct, module, options)
            with _unsharded():
                layout = _Layout.of(nnx.eval_shape(construct, jax.random.key(0)), options)
            init = lambda key, inputs, training: layout.split(construct(key))
            return Adapted(_NNXModel(module, layout, options).pure_model(init))
        if options.args or options.kwargs:
            raise SignatureError("`args` and `kwargs` are those of a class; the module is made already.")
        layout = _Layout.of(module, options)
        return Adapted(_NNXModel(type(module), layout, options).pure_model(None), layout.split(module))


def _construct(cls: type, options: ModuleOptions, key: Any) -> Any:
    """Returns a new module of the class, its streams made from `key`."""
    words = dict(options.kwargs)
    if "rngs" in flags.parameters_of(cls) and "rngs" not in words:
        names = ("default", *options.streams().named)
        words["rngs"] = nnx.Rngs(**prng.stream_keys(key, names))
    flags.check_arguments(cls, options.args, words)
    with _unsharded():
        return cls(*options.args, **words)


def _unsharded() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which annotated Variables can be made without a mesh; the layer lays them out."""
    # flax before 0.12 has no such setting, and shards nothing.
    return nnx.use_eager_sharding(False) if hasattr(nnx, "use_eager_sharding") else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where each Variable of a module goes.

    Attributes:
        graphdef: all of the module but the values of its Variables.
        roles: path -> "params", "state", or "drawn": keys and counts that the layer makes anew for each call.
        fixed: the paths of state that changes in training mode only.
        types: role of each type of Variable; the nearest base decides.
        drawn: path -> (shape, dtype, implementation of the key or None, tag of the stream).
    """

    graphdef: Any
    roles: dict[Path, str]
    types: dict[type, str]
    drawn: dict[Path, tuple[Any, Any, str | None, str]]
    fixed: frozenset[Path]

    @classmethod
    def of(cls, module: Any, options: ModuleOptions) -> _Layout:
        types = {**_ROLES, **{_variable_type(kind): role for kind, role in options.collections.items()}}
        if options.seeded:
            types[nnx.RngState] = "drawn"
        module = nnx.merge(*nnx.split(module))  # what is popped stays in the one that came
        nnx.pop(module, _has_role(types, _PASSING))
        graphdef, state = nnx.split(module)
        flat = dict(nnx.to_flat_state(state))
        roles = {path: _role(types, variable) for path, variable in flat.items()}
        fixed = frozenset(path for path, role in roles.items() if role == "training")
        roles |= dict.fromkeys(fixed, "state")
        drawn = {path: _described(flat[path]) for path, role in roles.items() if role == "drawn"}
        return cls(graphdef, roles, types, drawn, fixed)

    def split(self, module: Any) -> tuple[Any, Any]:
        """Returns params and state of a module, as nested dicts, with what it says of how they are split."""
        return self.part(module, "params", _annotated), self.part(module, "state", _annotated)

    def part(self, module: Any, role: str, read: Callable[[Any], Any]) -> Any:
        flat = dict(nnx.to_flat_state(nnx.state(module)))
        return _nested({path: read(flat[path]) for path, its in self.roles.items() if its == role})

    def merge(self, params: Any, state: Any, key: Any) -> Any:
        """Returns a module of these values; keys that are no state are made from `key`."""
        parts = {"params": params, "state": state}
        flat = [
            (path, self._drawn(path, key) if role == "drawn" else _get(parts[role], path))
            for path, role in self.roles.items()
        ]
        return nnx.merge(self.graphdef, nnx.from_flat_state(flat))

    def _drawn(self, path: Path, key: Any) -> Any:
        shape, dtype, impl, _ = self.drawn[path]
        if impl is None:
            return jnp.zeros(shape, dtype)
        name = "/".join(map(str, path[:-1]))
        # Without a key nothing is drawn; it is an error if something is.
        base = jax.random.key(0) if key is None else key
        own = prng.with_impl(jax.random.fold_in(base, prng.stream_number(name)), impl)
        return own if shape == () else jax.random.split(own, shape)


class _NNXModel:
    def __init__(self, cls: type, layout: _Layout, options: ModuleOptions):
        self.cls, self.layout, self.options = cls, layout, options
        self.said = options.streams()
        self.method = named_method(cls, options.method)
        self.call = MethodCall(self.method, options, flags.of_signature(self.method, options))

    def pure_model(self, init: Any) -> PureModel:
        layout = self.layout
        model = PureModel(
            init,
            self.apply,
            tuple(sorted({tag for *_, tag in layout.drawn.values()})),
            self.said.always if layout.drawn else (),
            self.call.takes_mask,
            identity=("nnx", self.cls, layout.graphdef, tuple(layout.roles.items()), self.options.without_start()),
        )
        return dataclasses.replace(model, resolve=functools.partial(self.resolve, model))

    def resolve(self, model: PureModel, params: Any, state: Any, inputs: CallInputs) -> PureModel:
        """Returns the model with the streams that its calls draw from: those of the layer, and keys that are arguments."""
        names = self.call.key_arguments(inputs)
        streams = (*model.rng_streams, *names)
        reads = lambda training: reads_key(self.apply, params, state, inputs, training)
        inference = model.inference_streams
        if streams and not inference and not self.said.training:
            try:
                inference = streams if reads(False) else ()
            except Exception:  # a module of one mode only; a call in the other says what is wrong
                inference = ()
        training = streams if model.rng_streams or (names and reads(True)) else ()
        return dataclasses.replace(model, rng_streams=training, inference_streams=inference, resolve=None)

    def apply(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        outputs, after = with_axes_bound(self._call)(params, state, key, inputs, training)
        return outputs, after if training else _without_changes(after, state, self.layout.fixed)

    def _call(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        module = self.layout.merge(params, state, key)
        self._set_mode(module, training)
        # `train` and `eval` change static attributes: what the call may not change is compared from here.
        before = nnx.graphdef(module)
        drawn = self._drawn_values(module)
        names = self.call.key_arguments(inputs)
        keys = fill_keys(names, prng.stream_keys(key, names))
        words = {name: nnx.Rngs(value) if name == "rngs" else value for name, value in keys.items()}
        rules = rules_in_effect()
        with nnx.logical_axis_rules(rules) if rules else contextlib.nullcontext():
            outputs = self.method(module, *inputs.args, **self.call.keywords(inputs, training), **words)
        passing = nnx.pop(module, _has_role(self.layout.types, _PASSING))
        after = nnx.graphdef(module)
        if after != before:
            raise _changed(before, after)
        if key is None:
            self._check_no_draws(drawn, self._drawn_values(module))
        return self._with_passing(outputs, passing), self.layout.part(module, "state", _value)

    def _drawn_values(self, module: Any) -> dict[Path, Any]:
        flat = dict(nnx.to_flat_state(nnx.state(module))) if self.layout.drawn else {}
        return {path: _value(flat[path]) for path in self.layout.drawn}

    def _set_mode(self, module: Any, training: bool) -> None:
        asked = flags.asked_for(self.options.training_flag)
        if asked is None:
            (module.train if training else module.eval)()
            asked = {name: flags.COMMON[name] for name in _ATTRIBUTES}
        found = set(self.call.flags)
        for path, pair in asked.items():
            name, _, rest = path.partition(".")
            for _, part in nnx.iter_modules(module):
                # `train` is also a method of every module.
                if name in vars(part) and not isinstance(vars(part)[name], nnx.Variable) and flags.has(part, path):
                    value = pair[0 if training else 1]
                    setattr(part, name, flags.replaced(getattr(part, name), rest, value) if rest else value)
                    found.add(path)
        flags.check_all_found(self.options, found, type(module).__name__)

    def _check_no_draws(self, before: dict[Path, Any], after: dict[Path, Any]) -> None:
        for path, value in after.items():
            if value is not before[path]:
                stream, tag = "/".join(map(str, path[:-1])), self.layout.drawn[path][3]
                raise StructureError(
                    f"The module draws from its stream '{stream}' at inference, and `rngs` says that it does in training mode "
                    f"only. Pass `rngs={{'{tag}': 'always'}}`, or leave it out: what the module asks for is found."
                )

    def _with_passing(self, outputs: Any, passing: Any) -> Any:
        types = self.layout.types
        flat = dict(nnx.to_flat_state(passing))
        of = lambda role: _nested({p: _value(v) for p, v in flat.items() if _role(types, v) == role})
        if "return" in types.values():
            outputs = (outputs, of("return"))
        losses = of("loss")
        return WithLosses(outputs, losses) if losses else outputs


def _variable_type(kind: Any) -> type:
    """Returns a type of Variable that was given as itself or by its registered name ("batch_stats")."""
    if isinstance(kind, type) and issubclass(kind, nnx.Variable):
        return kind
    if isinstance(kind, str):
        try:
            return nnx.variable_type_from_name(kind)
        except ValueError as error:
            raise SignatureError(
                f"`collections` names '{kind}', and no type of nnx.Variable has this name. Give the type itself."
            ) from error
    raise SignatureError(f"A key of `collections` must be a type of nnx.Variable or its name, got {kind!r}.")


def _role(types: Mapping[type, str], variable: Any) -> str:
    kinds = type(variable).__mro__ if isinstance(variable, nnx.Variable) else (nnx.Variable,)
    return next(types[base] for base in kinds if base in types)


def _has_role(types: Mapping[type, str], roles: tuple[str, ...]) -> Any:
    """Returns the filter of NNX for the Variables of these roles."""
    return lambda path, variable: isinstance(variable, nnx.Variable) and _role(types, variable) in roles


def _value(variable: Any) -> Any:
    # Arrays that are attributes without a Variable around them are leaves of their own.
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def _annotated(variable: Any) -> Any:
    """Returns the value of a Variable, with what its metadata says of how it is split."""
    value = _value(variable)
    metadata = variable.get_metadata() if isinstance(variable, nnx.Variable) else {}
    said = next((metadata[name] for name in _ANNOTATIONS if metadata.get(name)), None)
    if said is None:
        return value
    spec = getattr(getattr(said, "sharding", said), "spec", said)  # of a Format, of a NamedSharding, or itself
    return Annotated(value, PartitionSpec(*spec), tuple(map(tuple, metadata.get("sharding_rules") or ())))


def _described(variable: Any) -> tuple[Any, Any, str | None, str]:
    value = _value(variable)
    impl = prng.key_impl(value) if prng.is_typed_key(value) else None
    return tuple(value.shape), value.dtype, impl, variable.get_metadata().get("tag", "default")


def _nested(flat: Mapping[Path, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        functools.reduce(lambda node, part: node.setdefault(str(part), {}), path[:-1], tree)[str(path[-1])] = value
    return tree


def _without_changes(after: Any, before: Any, fixed: frozenset[Path]) -> Any:
    """Returns the state after a call, with the leaves at these paths as they were before it."""
    if not fixed:
        return after
    kept = {tuple(map(str, path)) for path in fixed}
    of = lambda path: tuple(entry.key for entry in path)
    return jax.tree_util.tree_map_with_path(lambda path, new, old: old if of(path) in kept else new, after, before)


def _get(tree: Any, path: Path) -> Any:
    return functools.reduce(lambda node, part: node[str(part)], path, tree)


def _changed(before: Any, after: Any) -> StructureError:
    """Returns the error for a call that changed the module itself, not only the values of its Variables."""
    olds, news = list(before.attributes), list(after.attributes)
    for old, new in zip(olds, news, strict=False):
        if old != new:
            name = old[0] if old[0] == new[0] else new[0]
            change = f"the attribute '{name}' changed from {old[1]} to {new[1]}"
            break
    else:
        change = "attributes were added or removed"
    return StructureError(
        f"The call changed the module itself: {change}. Only the values of Variables are kept between calls: make it an "
        "`nnx.Variable` (created in `__init__`), or say in `collections` what becomes of Variables that are made during a "
        "call ('drop', 'return' or 'loss')."
    )
