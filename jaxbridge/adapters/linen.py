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
from jaxbridge.adapters.axes import with_axes_bound
from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions, named_method
from jaxbridge.adapters.calls import MethodCall, fill_keys
from jaxbridge.adapters.draws import reads_key
from jaxbridge.adapters.linen_wrappers import in_mode, wraps_nnx
from jaxbridge.core import prng
from jaxbridge.core.constraints import Annotated, rules_in_effect
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.tree_paths import leaf_difference
from jaxbridge.errors import SignatureError, StructureError

require("flax.linen", "A flax.linen module")

import flax  # noqa: E402
from flax import linen  # noqa: E402

#: Streams that initialisation draws from besides "params", where the user names none.
_INIT_STREAMS = ("dropout",)

#: What becomes of a collection where the user says nothing; of others it is "state". `init` leaves intermediates out.
_ROLES = {"params": "params", "intermediates": "drop", "batch_stats": "training"}


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
        start = (None, None)
        if options.variables is not None:
            _check_variables(options.variables)
            start = split_variables(options.variables, options.collections)
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
        self.said = options.streams()
        self.method = named_method(type(module), options.method)
        settled = [name for name in flags.COMMON if getattr(module, name, None) is not None]
        found = flags.of_signature(self.method, options, settled if options.training_flag is None else ())
        self.call = MethodCall(self.method, options, found)
        self.modules: dict[bool, Any] = {mode: self._with_fields(module, mode) for mode in (True, False)}
        self.module = module
        self.roles = {**_ROLES, **options.collections}
        self.kept = tuple(name for name, role in options.collections.items() if role in ("state", "training"))
        self.passing = tuple(name for name, role in options.collections.items() if role in ("return", "loss", "drop"))

    def _with_fields(self, module: Any, training: bool) -> Any:
        """Returns the module with those flags set that are fields of it, or of what its fields hold."""
        names = {field.name for field in dataclasses.fields(module)}
        wanted = flags.asked_for(self.options.training_flag) or {}
        fields = {
            name: pair
            for name, pair in wanted.items()
            if name not in self.call.flags and name.partition(".")[0] in names and flags.has(module, name)
        }
        flags.check_all_found(self.options, {*fields, *self.call.flags}, type(module).__name__)
        for name, pair in fields.items():
            module = flags.replaced(module, name, pair[0 if training else 1])
        return module

    def pure_model(self) -> PureModel:
        return dataclasses.replace(self.with_streams(self.said.named, self.said.always), resolve=self.resolve)

    def with_streams(self, training: tuple[str, ...], inference: tuple[str, ...]) -> PureModel:
        streams = {True: training, False: inference}
        return PureModel(
            self.init,
            functools.partial(self.apply, streams=streams),
            training,
            inference,
            self.call.takes_mask,
            identity=("linen", self.module, self.options.without_start()),
        )

    def init(self, key: Any, inputs: CallInputs, training: bool) -> tuple[Any, Any]:
        arguments = self.call.key_arguments(inputs)
        keys = prng.stream_keys(key, (*dict.fromkeys(("params", *_INIT_STREAMS, *self.said.named, *arguments)),))
        words = {**self.call.keywords(inputs, training), **fill_keys(arguments, keys)}
        streams = {name: key for name, key in keys.items() if name not in arguments}
        return with_axes_bound(lambda: self._init(self.modules[training], streams, inputs, words))()

    def _init(self, module: Any, streams: Any, inputs: CallInputs, words: Mapping[str, Any]) -> tuple[Any, Any]:
        with _on_mesh(), in_mode(True):
            variables = flax.core.unfreeze(module.init(streams, *inputs.args, method=self.method, **words))
            late = [name for name in self.kept if name not in variables]
            if late:
                # A collection that `init` does not make starts from what one call leaves in it.
                _, made = module.apply(variables, *inputs.args, rngs=streams, method=self.method, mutable=late, **words)
                variables = {**variables, **flax.core.unfreeze(made)}
        return split_variables(variables, self.options.collections)

    def apply(
        self,
        params: Any,
        state: Any,
        key: Any,
        inputs: CallInputs,
        training: bool,
        *,
        streams: Mapping[bool, tuple[str, ...]],
    ) -> tuple[Any, Any]:
        state = state or {}
        fixed = [name for name in state if not training and self.roles.get(name) == "training"]
        keys = prng.stream_keys(key, streams[training])
        call = lambda fixed: with_axes_bound(self._call)({**(params or {}), **state}, keys, inputs, training, fixed)
        try:
            outputs, updated = call(fixed)
        except flax.errors.ModifyScopeVariableError as error:
            if _collection_of(error) not in fixed:
                raise self._explained(error, {*(params or {}), *state}) from error
            # A module that writes in every mode (`use_running_average=False`): what it writes here is dropped.
            outputs, updated = call([])
        except (flax.errors.ScopeCollectionNotFound, flax.errors.ScopeVariableNotFoundError) as error:
            raise self._explained(error, {*(params or {}), *state}) from error
        extra = {name: updated[name] for name in self.passing if name in updated}
        kept = {name: old if name in fixed else updated.get(name, old) for name, old in state.items()}
        return _with_extra(outputs, extra, self.options.collections), kept

    def _call(self, variables: Any, keys: Any, inputs: CallInputs, training: bool, fixed: Any) -> tuple[Any, Any]:
        arguments = self.call.key_arguments(inputs)
        with _on_mesh(), in_mode(training):
            outputs, updated = self.modules[training].apply(
                variables,
                *inputs.args,
                rngs={name: key for name, key in keys.items() if name not in arguments},
                method=self.method,
                # What else is sown during a call is dropped: linen does not write collections that are not named here.
                mutable=[*(n for n in variables if self._is_state(n) and n not in fixed), *self.passing],
                **self.call.keywords(inputs, training),
                **fill_keys(arguments, keys),
            )
        return outputs, flax.core.unfreeze(updated)

    def _is_state(self, collection: str) -> bool:
        return self.roles.get(collection, "state") in ("state", "training")

    def _explained(self, error: Exception, known: set[str]) -> Exception:
        """Returns the error that says what to write, or linen's own where the collection that it is about is there."""
        name = _collection_of(error)
        if name is None or name in known:
            return error
        if self.options.variables is not None and self.roles.get(name, "state") != "drop":
            return _forgotten(name)
        return _new_collection(name)

    def resolve(self, params: Any, state: Any, inputs: CallInputs) -> PureModel:
        """Returns the model with the streams that its calls ask for."""
        training = self._streams(True, self.said.named, params, state, inputs)
        try:
            inference = self._streams(False, self.said.always, params, state, inputs)
        except Exception as error:
            if isinstance(error, SignatureError):
                raise
            inference = self.said.always  # a module of one mode only; a call in the other says what is wrong
        return self.with_streams(training, inference)

    def _streams(self, training: bool, streams: tuple[str, ...], params: Any, state: Any, inputs: Any) -> Any:
        """Returns the streams that a call in this mode cannot do without: linen's error names the next."""
        while True:
            model = self.with_streams(streams, streams)
            try:
                wraps = self._check_state(model, training, params, state, inputs)
                break
            except flax.errors.InvalidRngError as error:
                missing = re.search(r'needs PRNG for "([^"]+)"', str(error))
                if missing is None or missing[1] in streams:
                    raise
                if not training and missing[1] in self.said.training:
                    raise _only_in_training(missing[1]) from error
                streams += (missing[1],)
        # What is no stream of linen's is found by what reads it: keys that are arguments, the one of an NNX module inside.
        more = (*self.call.key_arguments(inputs), *(("default",) if wraps else ()))
        more = tuple(name for name in more if name not in streams)
        if more and (streams or reads_key(self.with_streams(more, more).apply, params, state, inputs, training)):
            streams += more
        return streams

    def _check_state(self, model: PureModel, training: bool, params: Any, state: Any, inputs: CallInputs) -> bool:
        """Returns whether there are NNX modules inside; an error if the call leaves a collection in another form."""
        run = lambda p, s, i: model.apply(p, s, jax.random.key(0), i, training)
        with wraps_nnx() as found:
            after = jax.eval_shape(run, params, state, inputs)[1]
        for name, collection in (state or {}).items():
            difference = leaf_difference(collection, after[name])
            if difference is not None:
                raise StructureError(
                    f"The collection '{name}' changes its form with every call: {difference}. If its dtype follows that of the "
                    "inputs, fix it (`nn.BatchNorm(param_dtype='float64')`). If it is sown, say what "
                    f"becomes of it: `collections={{'{name}': 'drop'}}`, 'return' (beside the outputs) or 'loss' (added "
                    "to the model's losses)."
                )
        return bool(found)


def split_variables(variables: Any, roles: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """Returns the params and the state of a linen variable dict: collections by name, boxes as `Annotated`."""
    roles = {**_ROLES, **(roles or {})}
    is_box = lambda node: isinstance(node, linen.meta.AxisMetadata)
    plain = flax.core.unfreeze(jax.tree.map(_unboxed, variables, is_leaf=is_box))
    of = lambda *wanted: {name: value for name, value in plain.items() if roles.get(name, "state") in wanted}
    return of("params"), of("state", "training")


def _check_variables(variables: Any) -> None:
    """Raises a StructureError unless these are collections by name, as `module.init` returns them."""
    is_box = lambda node: isinstance(node, linen.meta.AxisMetadata)
    inside = (
        [name for name, value in variables.items() if is_box(value) or not isinstance(value, Mapping)]
        if (is_mapping := isinstance(variables, Mapping))
        else []
    )
    if not is_mapping or inside:
        found = f"'{inside[0]}' in it is none" if is_mapping else f"it is a {type(variables).__name__}"
        raise StructureError(
            f"`variables` must be collections by name, as `module.init` returns them, and {found}. Of params alone: "
            "`variables={'params': ...}`."
        )


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


def _collection_of(error: Exception) -> str | None:
    """Returns the collection that linen's error is about."""
    named = re.search(r'collection "([^"]+)"|of "([^"]+)"|"([^"]+)" collection', str(error))
    return next(filter(None, named.groups()), None) if named else None


def _forgotten(name: str) -> StructureError:
    if name == "params":
        return StructureError(
            "`variables` has no collection 'params'. It must hold collections by name, as `module.init` returns them: "
            "`variables={'params': ...}`."
        )
    return StructureError(
        f"The module uses the collection '{name}', and `variables` does not have it. Give all of what `module.init` returned: "
        f"`variables={{'params': ..., '{name}': ...}}`. Where there are params alone: `variables={{**module.init(key, x), "
        "'params': ...}`."
    )


def _only_in_training(name: str) -> SignatureError:
    return SignatureError(
        f"The module draws from the stream '{name}' at inference, and `rngs` says 'training' of it. Write `rngs={{'{name}': "
        "'always'}`, or leave it out: streams that the module asks for are found."
    )


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
