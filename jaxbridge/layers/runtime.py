"""What a layer knows while it runs: its model, its variables, and functions made once and kept."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.backends.base import Backend, Lowering, PureFunction
from jaxbridge.core._jax_private import trace_context
from jaxbridge.core.canonical import canonical_key
from jaxbridge.core.ladder import infer_outputs
from jaxbridge.core.programs import MADE_KEPT, PROGRAMS, Program
from jaxbridge.core.pure_model import CallInputs, PureModel, WithLosses
from jaxbridge.core.shapes import ArraySpec, Signature, make_signature
from jaxbridge.core.specs import without_warnings
from jaxbridge.errors import ShapeError
from jaxbridge.layers.calling import InputStructure, pure_function, split_inputs
from jaxbridge.layers.initialization import Initialization
from jaxbridge.layers.partitioning import Partitioning
from jaxbridge.layers.variables import VariableTree


@dataclasses.dataclass(frozen=True)
class SeenInputs:
    """The inputs of a call without their values.

    Attributes:
        structure: all but the arrays.
        specs: shape and dtype of each array.
        promised: whether sizes are promised for all calls (symbolic inputs), not only those of one value.
    """

    structure: InputStructure
    specs: tuple[ArraySpec, ...]
    promised: bool

    @property
    def shapes(self) -> tuple[tuple[int | None, ...], ...]:
        return tuple(spec.shape for spec in self.specs)


class LiftedFunctions:
    """The lifted functions of one layer, or of layers that are lifted as one.

    Args:
        backend: the Keras backend.
        lowering: what the layer itself says of it.
    """

    def __init__(self, backend: Backend, lowering: Lowering):
        self._backend, self._lowering = backend, lowering
        self._found: dict[Any, Any] = {}

    def get(
        self,
        inputs: SeenInputs,
        training: bool,
        variables: tuple[list[Any], list[Any], Any],
        source: Callable[[], tuple[Program, Signature]],
    ) -> Any:
        """Returns a pure function on the backend's tensors, made once for what determines it.

        Args:
            inputs: the inputs of the call.
            training: whether in training mode.
            variables: the first three arguments of the function.
            source: returns the pure function and the signature of the inputs, where they are needed.
        """
        arrays, treedef = jax.tree.flatten(variables)
        dtypes = tuple([_dtype_name(array.dtype) for array in arrays])
        lowering = backends.lowering_in_effect(self._lowering)
        # Looked up by every call outside of a trace, so before anything that takes longer than a hash.
        words = tuple([seed.shape[0] for seed in jax.tree.leaves(variables[2])])  # one more among replicas
        key = (inputs, training, treedef, dtypes, words, lowering, trace_context())
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= MADE_KEPT:
                self._found.clear()  # at once, which threads need no lock for; the program has kept them
            program, signature = source()
            found = self._found[key] = program.once(
                ("lifted", signature, treedef, dtypes, words, lowering),
                lambda: self._backend.lift(program.fn, variables, signature, lowering),
            )
        return found


@functools.lru_cache(maxsize=256)
def _dtype_name(dtype: Any) -> str:
    return keras.backend.standardize_dtype(dtype)


class Runtime:
    """The part of a layer that Keras does not see (Keras would wrap its dicts and track its lists).

    Args:
        model: the model.
        given: params and state that the user brings, or None for either.
        backend: the Keras backend.
        polymorphic_shapes: as the layer takes them.
        constraints: as the layer takes them.
        lowering: what the layer itself says of it.
        partitioning: what the layer is told of sharding.
        first_seed: the seed that the layer draws with.
    """

    def __init__(
        self,
        model: PureModel,
        given: tuple[Any, Any],
        backend: Backend,
        polymorphic_shapes: Any,
        constraints: Sequence[str],
        lowering: Lowering,
        partitioning: Partitioning,
        first_seed: int,
    ):
        self.model = model
        self.given = given
        self.backend = backend
        self.polymorphic_shapes = polymorphic_shapes
        self.constraints = tuple(constraints)
        self.lowering = lowering
        self.partitioning = partitioning
        self.first_seed = first_seed
        #: The dtype of floating outputs; None for that of the function.
        self.output_dtype: str | None = None
        self.params: VariableTree | None = None
        self.state: VariableTree | None = None
        #: The backend's mesh that the variables are laid out over, if they are.
        self.mesh: Any = None
        #: The inputs that the layer was built for, and those of the call that is about to build it.
        self.declared: tuple[InputStructure, Signature] | None = None
        self.seen: SeenInputs | None = None
        self._programs: dict[Any, tuple[Hashable | None, Program]] = {}
        self._signatures: dict[Any, Signature] = {}
        self._lifted = LiftedFunctions(backend, lowering)

    @property
    def key(self) -> Hashable | None:
        """Equal for models that compute the same, as they are now; None if that cannot be told."""
        return None if self.model.identity is None else canonical_key(self.model.identity)

    # Inputs.

    def see(self, inputs: CallInputs, float_dtype: str | None) -> tuple[SeenInputs, list[Any]]:
        """Returns the inputs of a call without their values, floats as `float_dtype` (None: their own); and the values."""
        structure, leaves = split_inputs(inputs)
        promised = all(isinstance(leaf, keras.KerasTensor) for leaf in leaves)
        return SeenInputs(structure, tuple(_spec(leaf, float_dtype) for leaf in leaves), promised), leaves

    def inputs_of_shape(self, input_shape: Any, dtype: str) -> SeenInputs:
        """Returns inputs of a shape or structure of shapes; dtypes are those the layer was built for, else `dtype`."""
        shapes: list[Any] = []
        tree = keras.tree.map_shape_structure(lambda shape: shapes.append(tuple(shape)) or 0.0, input_shape)
        structure, _ = split_inputs(CallInputs((jax.tree.map(lambda _: np.zeros(()), tree),)))
        dtypes = [dtype] * len(shapes)
        if self.declared is not None and len(self.declared[1].dtypes) == len(shapes):
            structure, dtypes = self.declared[0], list(self.declared[1].dtypes)
        return SeenInputs(structure, tuple(map(ArraySpec, shapes, dtypes)), True)

    def signature(self, inputs: SeenInputs) -> Signature:
        """Returns the signature that a call runs under: the declared one where it agrees with it, else its own."""
        if inputs not in self._signatures:
            masks = inputs.structure.mask_arrays()
            count = len(inputs.specs) - masks
            unmasked = dataclasses.replace(
                inputs,
                structure=inputs.structure.without_mask() if masks else inputs.structure,
                specs=inputs.specs[:count],
            )
            signature = self._signature_without_mask(unmasked)
            for index, mask in enumerate(inputs.specs[count:]):
                signature = signature.followed_by(mask, min(index, count - 1))
            self._signatures[inputs] = signature
        return self._signatures[inputs]

    def _signature_without_mask(self, inputs: SeenInputs) -> Signature:
        dtypes = tuple(spec.dtype for spec in inputs.specs)
        if self.declared is not None and self.declared[0] == inputs.structure:
            declared = self.declared[1]
            if declared.dtypes == dtypes and declared.agrees(inputs.shapes):
                return declared
        return make_signature(
            inputs.shapes,
            dtypes,
            declared=self._declared_texts(len(inputs.specs)),
            constraints=self.constraints,
            symbolic_batch=not inputs.promised,
        )

    def _declared_texts(self, count: int) -> tuple[str | None, ...] | None:
        """Returns `polymorphic_shapes` as one text (or None) per array of the inputs."""
        if self.polymorphic_shapes is None:
            return None
        texts = jax.tree.leaves(self.polymorphic_shapes, is_leaf=lambda node: node is None)
        if len(texts) != count or not all(text is None or isinstance(text, str) for text in texts):
            raise ShapeError(
                f"`polymorphic_shapes` must hold a text such as '(b, t, 3)' (or None) for each of the {count} inputs, in "
                f"their structure; got {self.polymorphic_shapes!r}."
            )
        return tuple(texts)

    # Functions.

    def program(self, structure: InputStructure, training: bool) -> Program:
        """Returns the pure function of a built layer; layers of equal models and equal variables share it.

        It is another one after what the model reads (a closure, a global) was changed.
        """
        params, state = self.params, self.state
        assert params is not None and state is not None
        identity, model_key = self.model.identity, self.key
        parts = (model_key, params.key, state.key)
        streams = self.model.rng_streams, self.model.inference_streams
        placement = self.partitioning.placement
        key = None if None in parts else (parts, streams, structure, training, self.output_dtype, placement)
        known_key, program = self._programs.get((structure, training), (None, None))
        if program is None or known_key != key:
            program = PROGRAMS.get(key)
            fn = self.pure_function(training)(structure)
            program.offer(self, fn, lambda: key is None or canonical_key(identity) == model_key)
            self._programs[structure, training] = key, program
        return program

    def pure_function(self, training: bool) -> Callable[[InputStructure], PureFunction]:
        """Returns the pure function of a built layer for inputs of any structure; nothing in it holds the variables."""
        assert self.params is not None and self.state is not None
        model, rebuilds, output_dtype = self.model, (self.params.rebuild, self.state.rebuild), self.output_dtype
        placement = self.partitioning.placement
        return lambda structure: pure_function(model, structure, *rebuilds, training, output_dtype, placement)

    def lifted(self, inputs: SeenInputs, training: bool, variables: tuple[list[Any], list[Any], Any]) -> Any:
        """Returns the pure function on the backend's tensors, made once for what determines it."""
        return self._lifted.get(
            inputs,
            training,
            variables,
            lambda: (self.program(inputs.structure, training), self.signature(inputs)),
        )

    # Shapes of outputs.

    def variable_structs(self) -> tuple[list[Any], list[Any]]:
        """Returns shape and dtype of each variable of a built layer's params and state."""
        assert self.params is not None and self.state is not None
        return [variable_struct(v) for v in self.params.variables], [variable_struct(v) for v in self.state.variables]

    def output_specs(self, inputs: SeenInputs, training: bool, start: Any, compute_dtype: str | None) -> Any:
        """Returns the outputs as a pytree of `ArraySpec`, without running anything; the layer need not be built.

        Args:
            inputs: the inputs.
            training: whether in training mode.
            start: returns the `Initialization` for a layer that is not built.
            compute_dtype: the dtype that floating params are read in; None for their own.
        """
        signature = self.signature(inputs)

        def infer(pure: Any, params: Sequence[Any], state: Sequence[Any], drawing: bool) -> Any:
            read = [cast_struct(struct, compute_dtype) for struct in params]
            seeds = jax.ShapeDtypeStruct((2,), np.uint32) if drawing else None
            with without_warnings():  # the batch sizes that are tried are nobody's
                return infer_outputs(
                    lambda leaves: without_losses(jax.eval_shape(pure, read, list(state), seeds, leaves)[0]),
                    signature,
                    concrete_shapes=self.backend.concrete_shapes,
                )

        if self.params is None or self.state is None:
            values: Initialization = start()
            params, state = values.parts
            rebuilds = params.rebuild, state.rebuild
            mesh = self.partitioning.mesh()
            pure = pure_function(values.model, inputs.structure, *rebuilds, training, self.output_dtype, mesh)
            return infer(pure, params.arrays, state.arrays, bool(values.model.streams(training)))
        params, state = map(tuple, self.variable_structs())
        program = self.program(inputs.structure, training)
        return program.once(
            ("outputs", signature, params, state, compute_dtype),
            lambda: infer(program.fn, params, state, bool(self.model.streams(training))),
        )


def without_losses(outputs: Any) -> Any:
    """Returns the outputs alone."""
    return outputs.outputs if isinstance(outputs, WithLosses) else outputs


def _spec(leaf: Any, float_dtype: str | None) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape), _dtype_of_input(leaf.dtype, float_dtype, jax.config.jax_enable_x64))


@functools.lru_cache(maxsize=256)
def _dtype_of_input(dtype: Any, float_dtype: str | None, x64: bool) -> str:
    """Returns the name of the dtype that JAX gives an input; `x64` is the setting in effect, for the cache."""
    name = keras.backend.standardize_dtype(dtype)
    if float_dtype is not None and keras.backend.is_float_dtype(name):
        name = float_dtype
    return np.dtype(jax.dtypes.canonicalize_dtype(name)).name


def variable_struct(variable: keras.Variable) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a variable as JAX has them."""
    return jax.ShapeDtypeStruct(tuple(variable.shape), np.dtype(jax.dtypes.canonicalize_dtype(variable.dtype)))


def cast_struct(struct: Any, float_dtype: str | None) -> Any:
    """Returns shape and dtype of a variable as it is read: floating ones in `float_dtype` (None: their own)."""
    if float_dtype is None or not jax.numpy.issubdtype(struct.dtype, jax.numpy.floating):
        return struct
    return jax.ShapeDtypeStruct(struct.shape, np.dtype(float_dtype))
