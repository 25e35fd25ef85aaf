"""`summary`: what each layer of a model costs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import keras

from jaxbridge._optional import require
from jaxbridge.core.arguments import checked
from jaxbridge.core.text_table import aligned
from jaxbridge.core.tree_paths import describe_leaf
from jaxbridge.errors import ShapeError
from jaxbridge.stages.abstract import LAYER, AbstractInputs, Arguments, declared_inputs, find_target
from jaxbridge.stages.lowering import lower_program, program_of
from jaxbridge.stages.programs import Program, keras_program

_COLUMNS = ("layer", "type", "output", "parameters", "FLOPs", "bytes", "peak")


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """What one layer of a model costs, compiled by itself; what the compiler does not say is None.

    Attributes:
        layer: its name; that of a layer in a nested model is "model/layer".
        type: its class.
        outputs: shape and dtype of each output, such as "float32[8, 16]".
        calls: how often the model calls it; the figures are those of all calls.
        parameters: how many numbers its weights hold.
        flops: floating point operations that it asks for, before the compiler optimizes. XLA counts the body of a loop
            (`jax.lax.scan`, a recurrent layer) once, and nothing for calls of libraries (`jnp.linalg`).
        bytes_accessed: bytes that the compiled program reads and writes.
        peak_memory: bytes that are allocated while it runs: weights, inputs, outputs and temporary values; the most of its
            calls.
    """

    layer: str
    type: str
    outputs: tuple[str, ...]
    calls: int
    parameters: int
    flops: float | None
    bytes_accessed: float | None
    peak_memory: int | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the layers of a model cost. Prints as a table; with rich as a table of rich.

    Attributes:
        inputs: shape and dtype of each input of the model.
        training: whether it is called in training mode.
        rows: the layers, in the order in which they are first called.
        total: the model as a whole. It is compiled as one program, so its bytes and its peak memory are not the sums of the
            rows'; its FLOPs are more where it computes something outside of its layers.
    """

    inputs: tuple[str, ...]
    training: bool
    rows: tuple[LayerCost, ...]
    total: LayerCost

    @property
    def title(self) -> str:
        mode = "training mode" if self.training else "inference"
        return f"{self.total.type} '{self.total.layer}' on {', '.join(self.inputs)}, {mode}"

    def __str__(self) -> str:
        table = [_COLUMNS, *map(_cells, (*self.rows, self.total))]
        lines = aligned(table, right=range(_FIRST_NUMBER, len(_COLUMNS)))
        rule = "-" * max(map(len, lines))
        return "\n".join([self.title, rule, lines[0], rule, *lines[1:-1], rule, lines[-1]])

    def __rich__(self) -> Any:
        table = require("rich.table", "A table of rich").Table(title=self.title, title_justify="left", box=None)
        for index, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if index >= _FIRST_NUMBER else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(_escaped, _cells(row)))
        table.add_section()
        table.add_row(*map(_escaped, _cells(self.total)))
        return table


@checked(model=LAYER)
def summary(model: Any, inputs: Any = None, training: bool = False, *, batch_size: int = 1) -> Summary:
    """Returns FLOPs, bytes, parameters and peak memory of every layer of a Keras model, without running it.

    Native Keras layers, modules and plain functions are counted alike, by the compiler: each layer is lowered and compiled
    for the shapes that the model calls it with. No weight needs a value. On Keras' TensorFlow backend only bridge layers can
    be counted, see `lower`.

    Args:
        model: a Keras model or layer, built or not, which is left as it is; or a function without arguments that makes one.
        inputs: as `lower` takes them, without unknown sizes; None for those that the model declares.
        training: whether in training mode.
        batch_size: the size of axis 0 where `inputs` is None and the model leaves it open.

    Returns:
        The rows and the total, which print as a table.

    Raises:
        LoweringError: there is nothing to count, nothing says what the inputs are, or the model is no bridge layer on Keras'
            TensorFlow backend.
        ShapeError: a size of the inputs is unknown.

    Example:
        >>> import jax.numpy as jnp, keras
        >>> import jaxbridge
        >>> layer = jaxbridge.JaxLayer(lambda params, inputs: inputs @ params["w"], params={"w": jnp.ones((8, 16))})
        >>> cost = jaxbridge.summary(layer, keras.KerasTensor((32, 8)))
        >>> cost.total.parameters, cost.total.flops  # 8 * 16, 2 * 32 * 8 * 16
        (128, 8192.0)
    """
    target = find_target(model, declared_inputs(batch_size) if inputs is None else inputs)
    if target.inputs.has_unknown_sizes:
        shown = ", ".join(map(describe_leaf, target.inputs.structs))
        raise ShapeError(
            f"What a layer costs depends on its sizes, and the inputs are {shown}. Give sizes that are numbers, such as "
            "8, 28, 28, 1."
        )
    program = program_of(target, training)
    figures = _Figures()
    total = _cost(target.layer.name, target.layer, [program], figures)
    if isinstance(target.layer, keras.Model):
        rows = [_row(calls, target.has_values, figures) for calls in _calls(target.layer, program)]
    else:
        rows = [total]
    return Summary(tuple(map(describe_leaf, target.inputs.structs)), bool(training), tuple(rows), total)


@dataclasses.dataclass
class _Calls:
    """A layer of a model and its calls.

    Attributes:
        path: its name, after those of the nested models that it is in.
        layer: the layer.
        calls: what it was called with, and whether in training mode.
    """

    path: str
    layer: keras.layers.Layer
    calls: list[tuple[AbstractInputs, bool]]


def _calls(model: keras.Model, program: Program) -> list[_Calls]:
    """Returns the layers of a model in the order in which they are first called, those that are not called at the end."""
    layers = list(_layers(model, ""))
    order: list[_Calls] = []
    with contextlib.ExitStack() as stack:
        for entry in layers:
            stack.enter_context(_recorded(entry, order))
        jax.eval_shape(program.call, program.variables, program.inputs)
    return [*order, *(entry for entry in layers if not entry.calls)]


def _layers(model: keras.Model, prefix: str) -> Iterator[_Calls]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer, f"{prefix}{layer.name}/")
        elif not isinstance(layer, keras.layers.InputLayer):
            yield _Calls(prefix + layer.name, layer, [])


@contextlib.contextmanager
def _recorded(entry: _Calls, order: list[_Calls]) -> Iterator[None]:
    """Returns a context that keeps what a layer is called with."""
    layer = entry.layer
    # Of what Keras calls, these two are looked up on the layer itself, after masks and the training flag were found.
    name = "call" if layer.dtype_policy.quantization_mode is None else "quantized_call"
    call = getattr(layer, name)

    def record(*args: Any, **kwargs: Any) -> Any:
        given = {word: value for word, value in kwargs.items() if word != "training"}
        if not entry.calls:
            order.append(entry)
        entry.calls.append((AbstractInputs.of(Arguments(args, given)), bool(kwargs.get("training"))))
        return call(*args, **kwargs)

    object.__setattr__(layer, name, record)  # not Keras' own, which tracks what a layer holds
    try:
        yield
    finally:
        object.__delattr__(layer, name)


def _row(entry: _Calls, has_values: bool, figures: _Figures) -> LayerCost:
    programs = [keras_program(entry.layer, inputs, training, has_values) for inputs, training in entry.calls]
    return _cost(entry.path, entry.layer, programs, figures)


def _cost(path: str, layer: keras.layers.Layer, programs: list[Program], figures: _Figures) -> LayerCost:
    found = [figures.of(program) for program in programs]
    peaks = [peak for *_, peak in found]
    return LayerCost(
        path,
        type(layer).__name__,
        found[-1][0] if found else (),
        len(programs),
        programs[0].parameters if programs else layer.count_params() if layer.built else 0,
        _sum([flops for _, flops, _, _ in found]),
        _sum([accessed for _, _, accessed, _ in found]),
        None if None in peaks else max((peak for peak in peaks if peak is not None), default=0),
    )


def _sum(values: list[float | None]) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


class _Figures:
    """What programs cost; equal ones are compiled once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float | None, int | None]] = {}

    def of(self, program: Program) -> tuple[tuple[str, ...], float | None, float | None, int | None]:
        """Returns the outputs, the FLOPs, the bytes accessed and the peak memory."""
        lowered = lower_program(dataclasses.replace(program, name="layer"), None, False)
        text = lowered.as_text()
        if text not in self._known:
            compiled = lowered.compile()
            memory = compiled.memory_analysis()
            accessed = _count(compiled.cost_analysis(), "bytes accessed")
            self._known[text] = accessed, None if memory is None else memory.allocated_size_in_bytes
        outputs = tuple(map(describe_leaf, jax.tree.leaves(lowered.out_info[0])))
        return outputs, _count(lowered.cost_analysis(), "flops"), *self._known[text]


def _count(cost: dict[str, float] | None, name: str) -> float | None:
    """Returns one of the compiler's counts; it leaves out those that are 0."""
    return None if cost is None else cost.get(name, 0.0)


# The table.

_FIRST_NUMBER = 3


def _cells(row: LayerCost) -> tuple[str, ...]:
    name = row.layer if row.calls == 1 else f"{row.layer} ({row.calls} calls)"
    amounts = (_amount(row.flops, ""), _amount(row.bytes_accessed, "B"), _amount(row.peak_memory, "B"))
    return (name, row.type, ", ".join(row.outputs), f"{row.parameters:,}", *amounts)


def _amount(value: float | None, unit: str) -> str:
    """Returns a number with a prefix of three digits: "8.70 k", "1.07 GB"."""
    if value is None:
        return "-"
    prefixes = iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while abs(value) >= 1000 and prefix != "P":
        value, prefix = value / 1000, next(prefixes)
    text = f"{value:.0f}" if prefix == "" or value >= 100 else f"{value:.3g}"
    return f"{text} {prefix}{unit}".strip()


def _escaped(text: str) -> Any:
    return require("rich.text", "A table of rich").Text(text)
