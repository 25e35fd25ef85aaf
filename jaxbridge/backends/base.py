"""What a Keras backend can do for a layer."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxbridge.core.shapes import Signature
from jaxbridge.errors import ShardingError

#: `fn(params, state, seeds, inputs) -> (outputs, new_state)`: lists of arrays, a pytree of seed states (or None), a list
#: of arrays; a pytree of arrays and a list of arrays.
PureFunction = Callable[[list[Any], list[Any], Any, list[Any]], tuple[Any, list[Any]]]

#: The same of a backend's tensors, and as a fifth argument a pytree of bools like `params`: what is trained.
LiftedFunction = Callable[[list[Any], list[Any], Any, list[Any], list[Any]], tuple[Any, list[Any]]]


@dataclasses.dataclass(frozen=True)
class Lowering:
    """What JAX functions are lowered for, where they become TensorFlow ones.

    Attributes:
        platforms: such as ("cpu", "cuda"); None for the one that TensorFlow sees, plus "cpu".
        target: such as "tensorflow==2.18"; None for the installed TensorFlow.
        nan: "keep" (None) or "fast", for maxima and minima.
        source_info: whether files and lines of the functions are written.
    """

    platforms: tuple[str, ...] | None = None
    target: str | None = None
    nan: str | None = None
    source_info: bool = False


class Backend(abc.ABC):
    """One Keras backend. Stateless; one instance per process."""

    #: Whether functions are only ever traced at concrete sizes.
    concrete_shapes: bool

    #: Whether JAX traces every Keras layer; if not, only the functions of bridge layers.
    traces_with_jax: bool

    #: The dtype of Keras' seed states.
    seed_dtype: str

    @abc.abstractmethod
    def lift(
        self,
        fn: PureFunction,
        variables: tuple[list[Any], list[Any], Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> LiftedFunction:
        """Makes a pure JAX function callable on this backend's tensors.

        Laws: the result gives what `fn` gives, up to rounding; its gradient is that of `fn`, also for what is not trained
        (a compiled training step does not compute what nobody asks for); outside a trace it runs
        compiled, and a second call with inputs that agree with the same signature traces nothing; inputs that do not
        agree with the signature's declared shapes raise a ShapeError (in a graph of unknown sizes: an assertion).

        Args:
            fn: the function.
            variables: an example of its first three arguments, for their structure, shapes and dtypes.
            inputs: shapes and dtypes of its fourth argument.
            lowering: what it is lowered for.
        """

    @abc.abstractmethod
    def build_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which variables may be created although a function is being traced."""

    @abc.abstractmethod
    def seed_words(self, seed: Any) -> Any:
        """Returns a Keras seed state `[s, n]` as uint32[2]; where several replicas run, with their index as third word."""

    @abc.abstractmethod
    def static_flag(self, flag: Any) -> bool | None:
        """Returns a training flag given as a tensor as a bool; None where only the running graph knows it."""

    @abc.abstractmethod
    def gradient(self, fn: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
        """Returns the gradients of `fn(values)`, a scalar tensor, with respect to each of `values`."""

    @abc.abstractmethod
    def trace(self, fn: Callable[..., Any], *structs: Any) -> Any:
        """Returns the closed jaxpr of a function of this backend's tensors.

        Args:
            fn: the function.
            *structs: its arguments, pytrees of `jax.ShapeDtypeStruct`.

        Raises:
            UnsupportedBackendError: the backend's functions have none.
        """

    @abc.abstractmethod
    def join_processes(
        self, address: str | None, count: int | None, index: int | None, timeout: int, heartbeat_timeout: int
    ) -> None:
        """Joins this process to the others; the arguments are those of `jaxbridge.distribution.initialize`."""

    @abc.abstractmethod
    def common_seed(self) -> int:
        """Returns a new seed, the same in all processes."""

    def host_value(self, x: Any) -> Any:
        """Returns the whole of a tensor on this host. Where parts of it are in other processes, all must call it."""
        return x

    @abc.abstractmethod
    def axis_size(self, x: Any, axis_name: str) -> int:
        """Returns the number of devices of an axis over which collectives of `x` run."""

    @abc.abstractmethod
    def all_reduce(self, x: Any, op: str, axis_name: str) -> Any:
        """Returns the reduction ("sum", "mean", "max", "min") of a tensor over the devices of an axis."""

    @abc.abstractmethod
    def all_gather(self, x: Any, axis: int, axis_name: str) -> Any:
        """Returns the tensors of the devices of an axis, concatenated along `axis`."""

    @abc.abstractmethod
    def reduce_scatter(self, x: Any, op: str, axis: int, axis_name: str) -> Any:
        """Returns each device's part, along `axis`, of the reduction over the devices of an axis.

        Raises:
            ShardingError: the size of `axis` cannot be divided by the number of devices.
        """

    @abc.abstractmethod
    def broadcast(self, x: Any, root: int, axis_name: str) -> Any:
        """Returns the tensor of the device with index `root` of an axis."""

    @abc.abstractmethod
    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of pytrees of this backend's tensors that rounds as Keras' compiled `predict` does."""

    @abc.abstractmethod
    def serving_function(
        self,
        fn: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, list[Any]]],
        variables: Sequence[Any],
        inputs: Signature,
        lowering: Lowering,
    ) -> Callable[[list[Any], list[Any]], tuple[Any, list[Any]]]:
        """Makes a function of this backend's tensors callable on TensorFlow tensors, inside a `tf.function`.

        Args:
            fn: `fn(variables, inputs) -> (outputs, new_state)`, of lists of this backend's tensors.
            variables: an example of its first argument, as TensorFlow variables.
            inputs: shapes and dtypes of its second argument.
            lowering: what it is lowered for.
        """

    @abc.abstractmethod
    def serving_platforms(self) -> tuple[str, ...]:
        """Returns the platforms that an export runs on by default: the one TensorFlow sees, plus "cpu"."""

    # Distribution.

    #: Whether Keras puts this backend's variables where a `keras.distribution` says.
    distributes: bool

    @abc.abstractmethod
    def mesh(self, device_mesh: Any) -> Any:
        """Returns a `keras.distribution.DeviceMesh` as this backend's mesh.

        Raises:
            ShardingError: its devices are not there, or cannot be made ready any more.
        """

    @abc.abstractmethod
    def mesh_parts(self, mesh: Any) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
        """Returns sizes, names of the axes, and devices as Keras names them, of one of this backend's meshes."""

    @abc.abstractmethod
    def layout(self, mesh: Any, axes: tuple[Any, ...]) -> Any:
        """Returns the layout of an array whose dimensions are split over these axes (a name, several, or None)."""

    @abc.abstractmethod
    def layout_parts(self, layout: Any) -> tuple[Any, tuple[Any, ...]]:
        """Returns mesh and axes of one of this backend's layouts; a ShardingError if it has no named mesh."""

    @abc.abstractmethod
    def place(self, value: Any, dtype: str, layout: Any) -> Any:
        """Returns an array (of numpy or JAX) as this backend's tensor, in a layout (None: where Keras puts tensors).

        Law: an array of the host is never whole on a device where the layout splits it.
        """

    @abc.abstractmethod
    def device_bytes(self, shape: tuple[int, ...], dtype: str, layout: Any) -> int:
        """Returns how many bytes of an array in a layout (None: without one) each device holds."""

    @abc.abstractmethod
    def brought_to(self, mesh: Any, values: list[Any], names: Callable[[int], str]) -> list[Any]:
        """Returns values for a call whose variables are on a mesh, moved where they could not be used as they are.

        Every move is said in a warning.

        Args:
            mesh: this backend's mesh.
            values: the values, also traced ones.
            names: what value number n is called in a warning.
        """

    @abc.abstractmethod
    def compiled_shardings(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Returns the shardings of arguments and results that the compiler chose where none was said.

        Args:
            fn: a function of this backend's tensors.
            args: pytrees of arrays, which say their shardings, or of what has only `shape` and `dtype`.

        Raises:
            UnsupportedBackendError: this backend's compiler chooses none.
        """

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        """Returns the static shape of a tensor, None where a size is not known."""
        return tuple(tensor.shape)


def check_divisible(size: int | None, axis: int, count: int, axis_name: str) -> None:
    """Raises a ShardingError where an axis cannot be scattered over `count` devices in equal parts."""
    if size is None or size % count:
        raise ShardingError(
            f"reduce_scatter: axis {axis} has size {size} on each device, which cannot be divided by the {count} devices of "
            f"'{axis_name}'. Pad it to {-(-(size or 0) // count) * count or 'a multiple'}, or use `all_reduce` and "
            "`split_tensor_for_parallelism`, whose parts may be uneven."
        )


def check_root(root: int, count: int, axis_name: str) -> None:
    """Raises a ShardingError where an axis of `count` devices has none of this index."""
    if not 0 <= root < count:
        raise ShardingError(
            f"broadcast: `root` must be from 0 to {count - 1}, the devices of '{axis_name}', got {root}."
        )
