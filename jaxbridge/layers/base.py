"""The Keras layer that runs a PureModel, on whatever backend Keras uses."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.backends.base import Lowering
from jaxbridge.core import prng
from jaxbridge.core.constraints import NOWHERE, Placement, without_annotations
from jaxbridge.core.partition import Sharding
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.records import Record, recorded
from jaxbridge.distribution.abstract import values_are_wanted
from jaxbridge.distribution.layouts import mesh_of
from jaxbridge.errors import SignatureError
from jaxbridge.layers import saving, weights_file
from jaxbridge.layers.config import check_shapes, pack_inputs, unpack_inputs
from jaxbridge.layers.initialization import Initialization
from jaxbridge.layers.keras_arguments import checked_layer
from jaxbridge.layers.partitioning import Partitioning
from jaxbridge.layers.path_rules import PathRules, RuleMethods
from jaxbridge.layers.runtime import Runtime, SeenInputs
from jaxbridge.layers.seeds import InitSeeds, LayerSeedGenerator
from jaxbridge.layers.shape_hook import OutputShapeHook
from jaxbridge.layers.structures import check_inputs, known_to_keras
from jaxbridge.layers.variables import VariableTree


class BridgeLayer(RuleMethods, keras.layers.Layer):
    """A Keras layer around a PureModel. Use `JaxLayer` or `FlaxLayer`; subclass this for another kind of module.

    Args:
        model: the model.
        given: params and state to start from, or None for either.
        scopes: the name scopes of params and state.
        compute_output_shape_fn: gives the output's shape (or structure of shapes) for the input's; it overrides what
            tracing finds.
        polymorphic_shapes: what is known of unknown sizes: a shape text such as "(b, t, 3)" per input, in the structure
            of the inputs. Equal names are equal sizes.
        polymorphic_constraints: constraints between the names, such as ("k >= 2",).
        seed: seed of the layer's random draws, below 2**32; None for one from Keras' global seed.
        rng_impl: the implementation of the keys: "threefry2x32" (None), "rbg" or "unsafe_rbg".
        native_serialization_platforms: platforms the function is lowered for on the TensorFlow backend, out of "cpu",
            "cuda", "rocm" and "tpu"; None for the one in use, plus "cpu".
        nan: "keep": maxima and minima of floats are NaN where an operand is, as in JAX and numpy. "fast": on the TensorFlow
            backend they are as its compiler has them, which on CPU may drop the NaN. Without effect on the JAX backend;
            exports have a `nan` of their own.
        sharding: how arrays are split over a mesh: a `jaxbridge.Sharding`; None for what the module itself says of its
            variables, on the mesh of the Keras distribution in effect; "ignore" for not at all.
        **kwargs: of `keras.layers.Layer`.
    """

    @checked_layer
    def __init__(
        self,
        model: PureModel,
        given: tuple[Any, Any] = (None, None),
        scopes: tuple[str, str] = ("params", "state"),
        *,
        compute_output_shape_fn: Callable[..., Any] | None = None,
        polymorphic_shapes: Any = None,
        polymorphic_constraints: Sequence[str] = (),
        seed: int | None = None,
        rng_impl: str | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        nan: str = "keep",
        sharding: Sharding | Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ):
        backend = backends.current()
        super().__init__(**kwargs)
        # Keras takes a layer with a `compute_mask` for one that passes masks on.
        self._supports_masking = type(self).compute_mask is not BridgeLayer.compute_mask
        self.seed = prng.check_seed(seed)
        self.rng_impl = prng.check_impl(rng_impl)
        self.seed_generator: keras.random.SeedGenerator | None = None
        self._scopes = scopes
        self._in_graph = False
        #: What files say of how the built layer is split; None where nothing is.
        self.sharding_record: Record | None = None
        self._rules = PathRules()
        self._shape_hook = OutputShapeHook(compute_output_shape_fn)
        # The seed is taken as keras.random.SeedGenerator(None) takes it: `keras.utils.set_random_seed` decides it.
        first_seed = random.randint(1, int(1e9)) if self.seed is None else self.seed
        self._init_seeds = InitSeeds(first_seed)
        self._runtime = Runtime(
            model.with_key_impl(self.rng_impl),
            given,
            backend,
            polymorphic_shapes,
            polymorphic_constraints,
            Lowering(
                None if native_serialization_platforms is None else tuple(native_serialization_platforms),
                nan=nan,
            ),
            Partitioning(sharding),
            first_seed,
        )

    @property
    def params(self) -> Any:
        """The pytree of trainable variables; before the layer is built, the params it was given, or None."""
        tree = self._runtime.params
        return without_annotations(self._runtime.given[0]) if tree is None else tree.tree

    @property
    def state(self) -> Any:
        """The pytree of non-trainable variables; before the layer is built, the state it was given, or None."""
        tree = self._runtime.state
        return without_annotations(self._runtime.given[1]) if tree is None else tree.tree

    @property
    def sharding(self) -> Sharding | str | None:
        """What the layer was told of sharding."""
        return self._runtime.partitioning.sharding

    @property
    def compute_output_shape_fn(self) -> Callable[..., Any] | None:
        """The hook that gives the output's shape, or None."""
        return self._shape_hook.fn

    @property
    def trainable(self) -> bool:
        """Whether the layer is trained; variables that were frozen by path stay so."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._set_trainable(value)

    def _set_trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value)  # pyright: ignore[reportOptionalCall]
        if value and self._runtime.params is not None:
            self._rules.apply(self._runtime.params.by_path())

    @property
    def supports_masking(self) -> bool:
        """Whether the layer takes part in masking; set it to True to pass the mask on to the next layer."""
        return self._supports_masking or self._runtime.model.uses_mask

    @supports_masking.setter
    def supports_masking(self, value: bool) -> None:
        self._supports_masking = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "supports_masking":
            # TensorFlow's tracking drops an assignment of what the attribute gives already, and a layer that takes a mask
            # gives True: the setter would never run.
            BridgeLayer.supports_masking.fset(self, value)  # pyright: ignore[reportOptionalCall]
        else:
            super().__setattr__(name, value)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Returns the mask for the next layer: none, unless `supports_masking` was set."""
        return previous_mask if self._supports_masking else None

    # Building.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_inputs(args, kwargs, self._runtime.backend.traces_with_jax)
        if keras.config.floatx() == "bfloat16":
            args = tuple(keras.tree.map_structure(_kept_exact, value) for value in args)
            kwargs = {name: keras.tree.map_structure(_kept_exact, value) for name, value in kwargs.items()}
        if not self.built:
            # Keras tells `build` the shapes only; initialisation must see the dtypes (token ids are integers) too.
            self._runtime.seen = self._see(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables.

        Args:
            input_shape: the input's shape, or structure of shapes; None is an unknown size. Dtypes are those of the
                call that builds the layer, else the layer's compute dtype.
        """
        runtime = self._runtime
        seen, runtime.seen = runtime.seen or runtime.inputs_of_shape(input_shape, self.compute_dtype), None
        start = self._placed_initialization(seen)
        params, state = self._trees(start, _has_fixed_batch(seen))
        if values_are_wanted():
            start.prepare((params.layouts, state.layouts))
        with runtime.backend.build_scope():
            self._create(params, state, start)
            generator = None
            if any(map(start.model.streams, (True, False))):
                generator = LayerSeedGenerator(runtime.first_seed, runtime.backend.seed_dtype)
        self.seed_generator = generator
        self._bridge_variables = [*params.variables, *state.variables]
        runtime.model, runtime.params, runtime.state = start.model, params, state
        runtime.mesh = mesh_of([*params.decisions, *state.decisions])
        runtime.output_dtype = self._output_dtype()
        runtime.declared = (seen.structure, runtime.signature(seen))
        self._set_trainable(self.trainable)
        self.sharding_record = runtime.partitioning.record(self.path, {**params.by_path(), **state.by_path()})
        start.forget()

    def _trees(self, start: Initialization, fixed_batch: bool) -> tuple[VariableTree, VariableTree]:
        """Returns params and state, whose variables are not made yet: everything is checked before one is."""
        partitioning, path = self._runtime.partitioning, self.path or self.name
        params, state = (
            VariableTree(part, prefix=scope, parent=path, annotations=partitioning.annotations)
            for part, scope in zip(start.parts, self._scopes, strict=True)
        )
        partitioning.settle(params, state, fixed_batch)
        return params, state

    def _create(self, params: VariableTree, state: VariableTree, start: Initialization) -> None:
        """Makes the variables of params and state, which get the first values of `start`."""
        layouts = params.layouts, state.layouts
        params.create(
            lambda index: start.own_value(0, index, layouts),
            trainable=True,
            float_dtype=self.variable_dtype,
            # Where nothing is cast Keras still calls `cast` at every read, which on TensorFlow takes 40 us a variable.
            autocast=self.autocast and self.compute_dtype != self.variable_dtype,
        )
        # Statistics and counters keep their own dtype under every policy.
        state.create(
            lambda index: start.own_value(1, index, layouts), trainable=False, float_dtype=None, autocast=False
        )

    def _output_dtype(self) -> str | None:
        """Returns the dtype of floating outputs: under a policy that asks for another than float32 they have it, as Keras'
        own layers' do; None for that of the function."""
        return self.compute_dtype if self.autocast and self.compute_dtype != "float32" else None

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns structure, shapes and dtypes of the inputs that the layer was built for."""
        declared = self._runtime.declared
        return None if declared is None else {"inputs": pack_inputs(*declared)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds the layer for the inputs of a build config."""
        if "inputs" not in config:  # a file of keras.layers.JaxLayer
            check_shapes(config)
            super().build_from_config(config)
            return
        inputs = unpack_inputs(config["inputs"])
        self._runtime.seen, _ = self._runtime.see(inputs, None)
        self.build(None)

    def _placed_initialization(self, seen: SeenInputs) -> Initialization:
        """Returns the first values of params and state, once it is decided how they are split."""
        try:
            start = self._initialization(seen)
        except Exception:
            # Inside a mesh linen applies what a module says as soon as it is initialised: an axis that is missing is an error
            # of JAX that names no variable. Without the mesh it is found out which.
            start = self._start_without_mesh(seen)
            if start is None:
                raise
        self._runtime.partitioning.read(self.name, start.parts, self._scopes)
        return start

    def _start_without_mesh(self, seen: SeenInputs) -> Initialization | None:
        try:
            return self._initialization(seen, NOWHERE)
        except Exception:  # the module needs the mesh, or has another mistake: the first error says which
            return None

    def _initialization(self, seen: SeenInputs, placement: Placement | None = None) -> Initialization:
        self._init_seeds.count = 0
        runtime = self._runtime
        return Initialization(
            runtime.model,
            runtime.given,
            seen.structure,
            runtime.signature(seen),
            seen.shapes,
            self._get_init_rng(),
            runtime.key,
            runtime.partitioning.mesh() if placement is None else placement,
        )

    # Randomness: Keras' overridable hooks.

    def _get_init_seed(self) -> Any:
        """Returns a new seed of shape [2] for initialisation, for use in `_get_init_rng`."""
        return self._init_seeds.next()

    def _get_init_rng(self) -> Any:
        """Returns a seed, or a structure of seeds, each made into a key for initialisation."""
        return self._get_init_seed()

    def _get_call_seed(self) -> Any:
        """Returns the next seed of shape [2] for a call, for use in `_get_call_rng`."""
        assert self.seed_generator is not None
        return self.seed_generator.next()

    def _get_call_rng(self, training: bool) -> Any:
        """Returns a seed, or a structure of seeds, each made into a key for the call; None for a call without."""
        return self._get_call_seed() if self._runtime.model.streams(training) else None

    # Calling.

    def call(self, inputs: Any, *args: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """Runs the model.

        Args:
            inputs: the input, a tensor or a pytree of tensors.
            *args: further positional inputs.
            training: whether in training mode.
            mask: the Keras mask, for models that take one.
            **kwargs: inputs by name; what is no tensor is fixed in the function.
        """
        runtime = self._runtime
        assert runtime.params is not None and runtime.state is not None
        seen, arrays = runtime.see(self._call_inputs(inputs, args, mask, kwargs), None)
        if runtime.mesh is not None:
            arrays = runtime.backend.brought_to(runtime.mesh, arrays, lambda n: f"Input {n} of layer '{self.name}'")
        values = runtime.params.values(), runtime.state.values()
        flag = self._training_flag(training)
        with recorded(self.sharding_record):
            if isinstance(flag, bool):
                seeds = self._seeds(flag)
                outputs, new_state = runtime.lifted(seen, flag, (*values, seeds))(
                    *values, seeds, arrays, runtime.params.trained()
                )
            else:
                outputs, new_state = self._call_either_way(flag, seen, values, arrays)
        if isinstance(outputs, WithLosses):
            self._add_losses(outputs.losses)
            outputs = outputs.outputs
        self._shape_hook.check(seen.structure, seen.shapes, outputs)
        runtime.state.assign(new_state)
        # In a model that is a graph Keras must find the tensors; called by itself, a layer returns what the module returns.
        return known_to_keras(outputs) if self._in_graph else outputs

    def _add_losses(self, losses: Any) -> None:
        for loss in jax.tree.leaves(losses):
            self.add_loss(keras.ops.sum(loss))

    def _call_either_way(
        self, flag: Any, seen: SeenInputs, values: tuple[list[Any], list[Any]], arrays: list[Any]
    ) -> Any:
        """Calls in the mode that only the running graph knows; the counter of draws moves only in a mode that draws."""
        generator, streams = self.seed_generator, self._runtime.model.streams
        before = None if generator is None else generator.state.value
        seeds = self._seeds(bool(streams(True)))
        assert self._runtime.params is not None
        trained = self._runtime.params.trained()
        structures: list[Any] = []

        def call(training: bool) -> list[Any]:
            variables = (*values, seeds if streams(training) else None)
            outputs, state = self._runtime.lifted(seen, training, variables)(*variables, arrays, trained)
            # Both branches must return the same structure.
            state = [old if new is None else new for old, new in zip(values[1], state, strict=True)]
            leaves, structure = jax.tree.flatten((outputs, state))
            structures.append(structure)
            return leaves

        result: Any = keras.ops.cond(flag, lambda: call(True), lambda: call(False))
        if generator is not None and bool(streams(True)) != bool(streams(False)):
            moves = flag if streams(True) else keras.ops.logical_not(flag)
            generator.state.assign(keras.ops.where(moves, generator.state.value, before))
        return jax.tree.unflatten(structures[0], result)

    def _seeds(self, training: bool) -> Any:
        """Draws the seeds of a call."""
        runtime = self._runtime
        if self.seed_generator is None:
            return None
        return jax.tree.map(runtime.backend.seed_words, self._get_call_rng(training))

    def _call_inputs(self, inputs: Any, args: Any, mask: Any, kwargs: Any) -> CallInputs:
        uses_mask = self._runtime.model.uses_mask and any(m is not None for m in keras.tree.flatten(mask))
        return CallInputs((inputs, *args), kwargs, mask if uses_mask else None)

    def _see(self, inputs: Any, *args: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> SeenInputs:
        """Returns the inputs of a call without their values, with the dtypes that Keras will convert them to."""
        call_inputs = self._call_inputs(inputs, args, mask, kwargs)
        return self._runtime.see(call_inputs, self.compute_dtype if self.autocast else None)[0]

    def _training_flag(self, training: Any) -> Any:
        """Returns the training flag as a bool; as a boolean tensor where only the running graph knows it."""
        if training is None or isinstance(training, bool | int | np.bool_):
            return bool(training)
        if not hasattr(training, "dtype") or tuple(training.shape):
            raise SignatureError(
                f"`training` must be True, False, None or a tensor of one such value; got {training!r:.200} of type "
                f"{type(training).__name__}."
            )
        static = self._runtime.backend.static_flag(training)
        return keras.ops.cast(training, "bool") if static is None else static

    # Shapes.

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the output's shape (or structure of shapes) for the input's; the layer need not be built."""
        seen = self._runtime.inputs_of_shape(input_shape, self.compute_dtype)
        if self._shape_hook.fn is not None:
            return self._shape_hook.output_shapes(seen.structure, seen.shapes)
        return jax.tree.map(lambda spec: spec.shape, known_to_keras(self._output_specs(seen, False)))

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the layer a part of a graph."""
        self._in_graph = True
        return super().symbolic_call(*args, **kwargs)

    def compute_output_spec(
        self, inputs: Any, *args: Any, training: Any = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Returns the output as `keras.KerasTensor`s, of the shapes and dtypes that JAX finds."""
        seen = self._see(inputs, *args, mask=mask, **kwargs)
        mode = self._training_flag(training) is True
        if self._shape_hook.fn is not None:
            return self._shape_hook.keras_tensors(
                seen.structure, seen.shapes, lambda: self._output_specs(seen, mode), self.compute_dtype
            )
        specs = known_to_keras(self._output_specs(seen, mode))
        return jax.tree.map(lambda spec: keras.KerasTensor(spec.shape, spec.dtype), specs)

    def _output_specs(self, seen: SeenInputs, training: bool) -> Any:
        return self._runtime.output_specs(
            seen, training, lambda: self._initialization(seen), self.compute_dtype if self.autocast else None
        )

    # Saving.

    def save_own_variables(self, store: Any) -> None:
        """Writes every variable under its path, and the seed state, so that a resumed training draws on."""
        weights_file.write(store, *self._saved())

    def load_own_variables(self, store: Any) -> None:
        """Reads variables by path, or by index from files of `keras.layers.JaxLayer`."""
        weights_file.read(store, *self._saved(), self.name)

    def _saved(self) -> tuple[dict[str, Any], Any]:
        runtime = self._runtime
        trees = [tree for tree in (runtime.params, runtime.state) if tree is not None]
        variables = {path: variable for tree in trees for path, variable in tree.by_path().items()}
        return variables, None if self.seed_generator is None else self.seed_generator.state

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer, for saving."""
        runtime = self._runtime
        lowering = runtime.lowering
        return {
            **super().get_config(),
            **self._packed_functions({"compute_output_shape_fn": self._shape_hook.fn}),
            "polymorphic_shapes": runtime.polymorphic_shapes,
            "polymorphic_constraints": list(runtime.constraints),
            "seed": self.seed,
            **({} if self.rng_impl is None else {"rng_impl": self.rng_impl}),
            **({} if self.sharding is None else {"sharding": runtime.partitioning.get_config()}),
            "native_serialization_platforms": None if lowering.platforms is None else list(lowering.platforms),
            **({} if lowering.nan == "keep" else {"nan": lowering.nan}),
            "path_rules": self._rules.get_config(),
            **({"supports_masking": True} if self._supports_masking else {}),
        }

    def _packed_functions(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        """Returns functions as a config holds them; a method of the layer itself is known to its class."""
        own = {name for name, fn in functions.items() if getattr(fn, "__self__", None) is self}
        return {name: saving.pack_function(fn, f"`{name}`") for name, fn in functions.items() if name not in own}

    #: What a config names, by argument: all of it is checked before any of it is made.
    _named_arguments: ClassVar[Mapping[str, saving.Argument]] = {
        "compute_output_shape_fn": saving.ANY,
        "path_rules": saving.KERAS,
        "dtype": saving.KERAS,
        "activity_regularizer": saving.KERAS,
    }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BridgeLayer:
        """Returns the layer that `get_config` described.

        Raises:
            StructureError: the config is damaged, or names what a file may not name: in Keras' safe mode functions and classes
                other than those on a list of the known libraries, those registered with Keras or given as `custom_objects`,
                and the user's own in modules that are imported.
        """
        arguments = saving.read(config, cls._named_arguments)
        rules = PathRules.from_config(arguments.pop("path_rules", ()))
        supports_masking = arguments.pop("supports_masking", False)
        layer = cls(**arguments)
        layer._rules = rules
        if supports_masking:
            layer.supports_masking = True
        return layer

    def quantize(self, mode: Any = None, **kwargs: Any) -> None:
        """Raises: Keras rewrites the weights of its own layers to quantize them, and cannot rewrite a JAX function."""
        raise NotImplementedError(
            f"Layer '{self.name}' wraps a JAX function, which Keras cannot quantize. Quantize inside the function, or leave "
            "the layer out (`model.quantize(mode, filters=...)`)."
        )


def _kept_exact(value: Any) -> Any:
    """Returns an array of integers or bools as a tensor: under floatx "bfloat16" Keras on JAX makes floats of it (3.15)."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iub":
        return value
    return keras.ops.convert_to_tensor(value, dtype=jax.dtypes.canonicalize_dtype(value.dtype).name)


def _has_fixed_batch(seen: SeenInputs) -> bool:
    return seen.promised and all(shape and shape[0] is not None for shape in seen.shapes)
