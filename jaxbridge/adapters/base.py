"""What an adapter is: the one thing that a module library needs in order to be used in Keras."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from jaxbridge.core.pure_model import PureModel
from jaxbridge.errors import SignatureError, StructureError

#: What may happen to a collection of variables (linen) or to a type of Variable (NNX).
ROLES = ("params", "state", "training", "return", "loss", "drop")


@dataclasses.dataclass(frozen=True)
class Streams:
    """What the option `rngs` says.

    Attributes:
        named: streams that a training call draws from, whether it asks for them or not.
        always: those of them that inference draws from, whether it asks for them or not.
        training: those of them that inference never draws from.
        arguments: names of arguments of the call that are keys.
    """

    named: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModuleOptions:
    """What a user says of a module besides the module; every field has the default of "nothing said".

    Attributes:
        method: the method to call, by name or as a function of the module; None for the call itself.
        args: positional arguments of `module`, where that is a class.
        kwargs: keyword arguments of `module`, where that is a class.
        variables: values to start from, as the library writes them.
        rngs: names of random streams; a mapping says "training", "always" or "argument" of each.
        training_flag: the name of the flag that follows the mode (or its path, such as "config.deterministic"), or names
            with the pair of values that they have in training and at inference; None for those that the adapter finds.
        call_kwargs: keyword arguments that every call has.
        collections: collection (or type of Variable) -> one of `ROLES`.
        vmap: whether the module takes single examples, so that it is mapped over axis 0 of its inputs.
        seeded: whether the layer's seed was given, so that a library's own key state gives way to the layer's draws.
    """

    method: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variables: Any = None
    rngs: Sequence[str] | Mapping[str, str] | None = None
    training_flag: str | Mapping[str, Sequence[Any]] | None = None
    call_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    collections: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    vmap: bool = False
    seeded: bool = False

    def streams(self) -> Streams:
        """Returns what `rngs` says.

        Raises:
            SignatureError: it says something that has no meaning.
        """
        if self.rngs is None:
            return Streams()
        if not isinstance(self.rngs, Mapping):
            return Streams(tuple(self.rngs))
        for name, when in self.rngs.items():
            if when not in ("training", "always", "argument"):
                raise SignatureError(
                    f"`rngs` says {when!r} of stream '{name}'; write 'training' or 'always', or 'argument' for a key that "
                    "is an argument of the call."
                )
        said = lambda wanted: tuple(name for name, when in self.rngs.items() if when == wanted)  # pyright: ignore[reportOptionalMemberAccess]
        named = tuple(name for name, when in self.rngs.items() if when != "argument")
        return Streams(named, said("always"), said("training"), said("argument"))

    def without_start(self) -> tuple[Any, ...]:
        """Returns all but `variables`, for a model's identity."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "variables")


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A module made into a PureModel.

    Attributes:
        model: the model.
        start: params and state that the module brings; None for either that `model.init` makes. Leaves may be
            `constraints.Annotated`.
        scopes: the folders of the variables' paths for params and state; "" where the pytrees name them already.
    """

    model: PureModel
    start: tuple[Any, Any] = (None, None)
    scopes: tuple[str, str] = ("params", "state")


class Adapter(abc.ABC):
    """Makes a PureModel of the modules of one library.

    `jaxbridge.testing.check_adapter` tests each of these laws.

    1. *Recognition.* `handles` is true of the library's modules and false of everything else; it raises nothing.
    2. *The module is left alone.* Neither `adapt` nor what it returns changes the module.
    3. *Initialisation is a function.* `model.init` gives the same values for the same key, and can be traced.
    4. *Paths.* Every leaf of params and state is an array, a number or a typed key (in an `Annotated`, where the module
       says how it is split over devices), and no two have the same path. Only params are trained.
    5. *Purity.* `model.apply` under `jax.jit` gives what it gives without; the same arguments give the same results.
    6. *State keeps its form.* The returned state has the structure, shapes and dtypes of the one that was given, in
       both modes.
    7. *No key, no draws.* With the key None, `apply` at inference works, unless the model names `inference_streams`.
    8. *Keys decide.* If the model names streams, other keys give other results or another state in training mode; if it
       names none, the key is not looked at.
    9. *Unknown batch.* `apply` can be traced where axis 0 of the inputs is a symbol.
    10. *Gradients.* The gradient of the outputs with respect to the floating params exists and is finite.
    11. *Identity.* Adapting the module twice gives models whose `identity` makes equal keys, or none.
    12. *Construction.* What `construction` returns makes a module that initialises as the first did; or it says why
        there is nothing to return.
    """

    #: The Python package whose classes are modules: "flax.linen". No adapter is imported before a module is seen that
    #: has such a class among its bases.
    library: ClassVar[str]

    #: The fields of `ModuleOptions` that the adapter understands; another that was given is an error.
    options: ClassVar[frozenset[str]] = frozenset({"method", "training_flag", "call_kwargs"})

    @abc.abstractmethod
    def handles(self, module: Any) -> bool:
        """Returns whether `module` (an instance, a class or a function) is one of the library's."""

    @abc.abstractmethod
    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        """Returns the model.

        Raises:
            SignatureError: an option does not fit the module.
            StructureError: the module is in a state that no model can be made of.
        """

    def construction(self, module: Any) -> tuple[type, dict[str, Any]]:
        """Returns the class of a module and the fields that `reconstruct` makes an equal module of, for saving.

        A field that is an array stands for a variable: only its shape and dtype are kept, its values are weights.

        Raises:
            StructureError: there is no way; the message says what to do.
        """
        raise StructureError(
            f"A {type(module).__name__} cannot be written to a file as it is. Give the layer the class and its arguments "
            "(`args=`, `kwargs=`), or give the class `get_config` and `from_config` and register it with "
            "`keras.saving.register_keras_serializable`."
        )

    def reconstruct(self, cls: type, fields: dict[str, Any]) -> Any:
        """Returns the module that `construction` described."""
        return cls(**fields)

    def check(self, options: ModuleOptions) -> None:
        """Raises a SignatureError if an option was given that this adapter does not understand."""
        for field in dataclasses.fields(options):
            default = field.default if field.default is not dataclasses.MISSING else {}
            given = getattr(options, field.name)
            if field.name not in (*self.options, "seeded") and (given is not default) and given != default:
                raise SignatureError(
                    f"`{field.name}` means nothing for modules of {self.library}; the options that do are "
                    f"{', '.join(f'`{name}`' for name in sorted(self.options))}."
                )
        for name, role in options.collections.items():
            if role not in ROLES:
                raise SignatureError(
                    f"`collections` says {role!r} of {name!r}; write one of {', '.join(map(repr, ROLES))}."
                )


def named_method(cls: type, method: Callable[..., Any] | str | None, default: str = "__call__") -> Callable[..., Any]:
    """Returns the method of a class as a function whose first argument is the instance."""
    if method is None or isinstance(method, str):
        name = method or default
        if not callable(getattr(cls, name, None)):
            raise SignatureError(f"`method` is '{name}', and {cls.__name__} has no such method.")
        return getattr(cls, name)
    # A method of an instance is called on the model's own instance, never on that one.
    return getattr(method, "__func__", method)
