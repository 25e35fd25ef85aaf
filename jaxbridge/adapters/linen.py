"""flax.linen modules as PureModels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
from jax.sharding import PartitionSpec

from jaxbridge._optional import require
from jaxbridge.adapters import flags
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, keywords, named_method
from jaxbridge.core import prng
from jaxbridge.core.constraints import Annotated, rules_in_effect
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.tree_paths import leaf_difference
from jaxbridge.errors import StructureError

require("flax.linen", "A flax.linen module")

import flax  # noqa: E402
from flax import linen  # noqa: E402

#: Streams that initialisation draws from besides "params", where the user names none.
_INIT_STREAMS = ("dropout",)

#: What linen itself makes of a collection, where the user says nothing: `init` leaves it out.
_DROPPED = "intermediates"


class LinenAdapter(Adapter):
    """Modules of `flax.linen`, unbound; or a class, with its arguments.

    Params are `{"params": ...}`, the state is the other collections of `module.init`.
    """

    library: ClassVar[str] = "flax.linen"
    options: ClassVar[frozenset[str]] = Adapter.options | {"args", "kwargs", "variables", "rngs", "collections"}

    def handles(self, module: Any) -> bool:
        return isinstance(module, linen.Module) or (isinstance(module, type) and issubclass(module, linen.Module))

    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        if isinstance(module, type):
            flags.check_arguments(module, options.args, options.kwargs)
            module = module(*options.args, **options.kwargs)
        elif options.args or options.kwargs:
            raise StructureError("`args` and `kwargs` are those of a class; the module is made already.")
        start = (None, None) if options.variables is None else split_variables(options.variables, options.collections)
        return Adapted(_LinenModel(module, options).pure_model(), start, ("", ""))

    def construction(self, module: Any) -> tuple[type, dict[str, Any]]:
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(module):
            # `parent` says where a module hangs; a field of no constructor is made by the class itself.
            if field.name == "parent" or not field.init:
                continue
            value = getattr(module, field.name)
            if not _is_default(field, value):
                fields[field.name] = value
        return type(module), fields


class _LinenModel:
    def __init__(self, module: Any, options: ModuleOptions):
        self.options = options
        self.rngs, self.always = options.streams()
        self.method = named_method(type(module), options.method)
        settled = [name for name in flags.COMMON if getattr(module, name, None) is not None]
        self.flags = flags.of_signature(self.method, options, settled if options.training_flag is None else ())
        self.modules: dict[bool, Any] = {mode: self._with_fields(module, mode) for mode in (True, False)}
        self.module = module
        self.takes_mask = "mask" in flags.parameters_of(self.method)
        roles = options.collections
        self.kept = tuple(name for name, role in roles.items() if role == "state")
        self.trained = ("params", *(name for name, role in roles.items() if role == "params"))
        self.passing = tuple(name for name, role in roles.items() if role in ("return", "loss", "drop"))

    def _with_fields(self, module: Any, training: bool) -> Any:
        """Returns the module with those flags set that are fields of it."""
        names = {field.name for field in dataclasses.fields(module)}
        wanted = flags.asked_for(self.options.training_flag) or {}
        fields = {name: pair for name, pair in wanted.items() if name in names and name not in self.flags}
        flags.check_all_found(self.options, {*fields, *self.flags}, type(module).__name__)
        values = {name: pair[0 if training else 1] for name, pair in fields.items()}
        return module.clone(**values) if values else module

    def pure_model(self) -> PureModel:
        return dataclasses.replace(self.with_streams(self.rngs or ()), resolve=self.resolve)

    def with_streams(self, streams: tuple[str, ...]) -> PureModel:
        return PureModel(
            self.init,
            functools.partial(self.apply, streams=streams),
            streams,
            self.always,
            self.takes_mask,
            identity=("linen", self.module, self.options.without_start()),
        )

    def _keywords(self, inputs: CallInputs, training: bool) -> dict[str, Any]:
        return keywords(self.flags, self.options, inputs, training, self.takes_mask)

    def init(self, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        streams = prng.stream_keys(key, ("params", *(_INIT_STREAMS if self.rngs is None else self.rngs)))
        module, words = self.modules[training], self._keywords(inputs, training)
        with _on_mesh():
            return self._init(module, streams, inputs, words)

    def _init(self, module: Any, streams: Any, inputs: CallInputs, words: Mapping[str, Any]) -> tuple[Any, Any]:
        variables = flax.core.unfreeze(module.init(streams, *inputs.args, method=self.method, **words))
        late = [name for name in self.kept if name not in variables]
        if late:
            # A collection that `init` does not make starts from what one call leaves in it.
            _, made = module.apply(variables, *inputs.args, rngs=streams, method=self.method, mutable=late, **words)
            variables = {**variables, **flax.core.unfreeze(made)}
        return split_variables(variables, self.options.collections)

    def apply(
        self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool, *, streams: tuple[str, ...]
    ) -> tuple[Any, Any]:
        with _on_mesh():
            outputs, updated = self._call(params, state, key, inputs, training, streams)
        extra = {name: updated[name] for name in self.passing if name in updated}
        kept = {name: updated.get(name, collection) for name, collection in (state or {}).items()}
        return _with_extra(outputs, extra, self.options.collections), kept

    def _call(self, params: Any, state: Any, key: Any, inputs: CallInputs, training: bool, streams: Any) -> Any:
        drawing = streams if training else self.always
        try:
            outputs, updated = self.modules[training].apply(
                {**(params or {}), **(state or {})},
                *inputs.args,
                rngs=prng.stream_keys(key, drawing) if drawing else {},
                method=self.method,
                # What else is sown during a call is dropped: linen does not write collections that are not named here.
                mutable=[*(state or {}), *self.passing],
                **self._keywords(inputs, training),
            )
        except (
            flax.errors.ModifyScopeVariableError,
            flax.errors.ScopeCollectionNotFound,
            flax.errors.ScopeVariableNotFoundError,
        ) as error:
            name = _collection_of(error, {*(params or {}), *(state or {})})
            if name is None:
                raise
            raise _new_collection(name) from error
        return outputs, flax.core.unfreeze(updated)

    def resolve(self, params: Any, state: Any, inputs: CallInputs) -> PureModel:
        """Returns the model with the streams that a training call cannot do without: linen's error names the next."""
        streams = self.rngs or ()
        while True:
            model = self.with_streams(streams)
            try:
                return self.checked(model, params, state, inputs)
            except flax.errors.InvalidRngError as error:
                missing = re.search(r'needs PRNG for "([^"]+)"', str(error))
                if missing is None or missing[1] in streams or self.rngs is not None:
                    raise
                streams += (missing[1],)

    def checked(self, model: PureModel, params: Any, state: Any, inputs: CallInputs) -> PureModel:
        """Returns the model if a training call leaves every collection as it was."""
        run = lambda p, s, i: model.apply(p, s, jax.random.key(0), i, True)
        after = jax.eval_shape(run, params, state, inputs)[1]
        for name, collection in (state or {}).items():
            difference = leaf_difference(collection, after[name])
            if difference is not None:
                raise StructureError(
                    f"The collection '{name}' changes its form with every call: {difference}. If it is sown, say what "
                    f"becomes of it: `collections={{'{name}': 'drop'}}`, 'return' (beside the outputs) or 'loss' (added "
                    "to the model's losses)."
                )
        return model


def split_variables(variables: Any, roles: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """Returns the params and the state of a linen variable dict: collections by name, boxes as `Annotated`."""
    roles = roles or {}
    is_box = lambda node: isinstance(node, linen.meta.AxisMetadata)
    plain = flax.core.unfreeze(jax.tree.map(_unboxed, variables, is_leaf=is_box))
    role_of = lambda name: roles.get(name, "params" if name == "params" else "drop" if name == _DROPPED else "state")
    params = {name: collection for name, collection in plain.items() if role_of(name) == "params"}
    return params, {name: collection for name, collection in plain.items() if role_of(name) == "state"}


def _unboxed(node: Any) -> Any:
    if not isinstance(node, linen.meta.AxisMetadata):
        return node
    if not isinstance(node, linen.Partitioned):  # boxes of somebody else's, which say nothing of meshes
        return node.unbox()
    value = node.unbox(apply_constraint=False)
    rules = getattr(node, "rules", None) or ()
    return Annotated(value, PartitionSpec(*node.names), tuple(map(tuple, rules)))


@contextlib.contextmanager
def _on_mesh() -> Iterator[None]:
    """Returns a context in which linen's own words for shardings are those of the layer, if it has a mesh."""
    if jax.sharding.get_abstract_mesh().empty:
        yield
        return
    with linen.logical_axis_rules(rules_in_effect()), linen.intercept_methods(_without_mesh):
        yield


def _without_mesh(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a method of a module; a DenseGeneral without the mesh.

    With a mesh in context it constrains its flat kernel by the spec of the kernel's real shape, of another rank, when it is
    initialised and whenever its shape is checked (flax 0.12.12); attention is made of it. Its params are constrained anyway.
    """
    if not isinstance(context.module, linen.DenseGeneral):
        return call(*args, **kwargs)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return call(*args, **kwargs)


def _with_extra(outputs: Any, extra: Mapping[str, Any], roles: Mapping[str, str]) -> Any:
    returned = {name: value for name, value in extra.items() if roles[name] == "return"}
    losses = {name: value for name, value in extra.items() if roles[name] == "loss"}
    if "return" in roles.values():
        outputs = (outputs, returned)
    return WithLosses(outputs, losses) if losses else outputs


def _collection_of(error: Exception, known: set[str]) -> str | None:
    """Returns the collection that linen's error is about, if the variables do not have it."""
    named = re.search(r'collection "([^"]+)"|of "([^"]+)"|"([^"]+)" collection', str(error))
    name = next(filter(None, named.groups()), None) if named else None
    return name if name not in known else None


def _new_collection(name: str) -> StructureError:
    return StructureError(
        f"The module writes to the collection '{name}' during a call, and initialisation did not make it. Say what becomes "
        f"of it: `collections={{'{name}': 'state'}}` (kept between calls), 'return' (beside the outputs), 'loss' (added to "
        "the model's losses) or 'drop'."
    )


def _is_default(field: Any, value: Any) -> bool:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return value is default or (
        type(value) is type(default) and isinstance(value, str | int | float) and value == default
    )
