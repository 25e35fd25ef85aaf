"""`describe_layouts`: how the variables of a model are laid out, and who said so."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator

import keras
from jax.sharding import PartitionSpec

from jaxbridge import backends
from jaxbridge.core.text_table import aligned
from jaxbridge.distribution import _keras_private
from jaxbridge.distribution.layouts import Decision, decide, layout_parts, remembered
from jaxbridge.distribution.matching import matching_keys
from jaxbridge.distribution.native import assigned_backend_layout
from jaxbridge.distribution.object_paths import subtree
from jaxbridge.distribution.specs import axes_of_spec, spec_text


@dataclasses.dataclass(frozen=True)
class LayoutRow:
    """The layout of one variable.

    Attributes:
        path: its path in Keras.
        shape: its shape.
        dtype: its dtype.
        spec: per dimension the axes of the mesh that it is split over; None where it has no layout.
        device_bytes: how many bytes of it each device holds.
        source: who decided: "LayoutMap", "scope", "distribution", "annotation", "replicated"; "slot" for a variable of the
            optimizer, which follows that of the model; "given" for a layout that the distribution in effect does not
            explain; "" where it has none.
        key: the key that matched; for a slot the path of the variable that it follows.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: PartitionSpec | None
    device_bytes: int
    source: str
    key: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Returns the row as texts."""
        spec = "" if self.spec is None else spec_text(axes_of_spec(self.spec, len(self.shape)))
        source = f"{self.source} '{self.key}'" if self.key else self.source
        return self.path, str(self.shape), self.dtype, spec, f"{self.device_bytes:,}", source


@dataclasses.dataclass(frozen=True)
class LayoutReport:
    """The layouts of a model's variables. As text it is a table.

    Attributes:
        rows: one per variable of the model, then of its optimizer.
        unmatched: keys of the LayoutMap that match nothing.
        overlapping: for each path that several keys match, the path and the keys.
    """

    rows: tuple[LayoutRow, ...]
    unmatched: tuple[str, ...] = ()
    overlapping: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def device_bytes(self) -> int:
        """How many bytes of variables each device holds."""
        return sum(row.device_bytes for row in self.rows)

    def __str__(self) -> str:
        head = ("path", "shape", "dtype", "spec", "bytes per device", "decided by")
        table = [head, *[row.cells() for row in self.rows], ("in all", "", "", "", f"{self.device_bytes:,}", "")]
        rule = ["-" * max(map(len, column)) for column in zip(*table, strict=True)]
        lines = aligned([head, rule, *table[1:]], right=[head.index("bytes per device")])
        return "\n".join([*lines, *self.problems()])

    def problems(self) -> list[str]:
        """Returns what is wrong with the keys, a sentence each."""
        return [
            *[f"The LayoutMap key '{key}' matches nothing." for key in self.unmatched],
            *[f"'{path}' matches {len(keys)} keys: {', '.join(map(repr, keys))}." for path, keys in self.overlapping],
        ]


def describe_layouts(model: keras.layers.Layer, layout_map: keras.distribution.LayoutMap | None = None) -> LayoutReport:
    """Reports how the variables of a model and of its optimizer are laid out.

    Warns of keys that match nothing, and of paths that several keys match.

    Args:
        model: a built model or layer.
        layout_map: the map whose keys are checked, such as that of a `layout_map_scope`; None for that of the distribution
            in effect. A key is matched by a variable, or by the output of a layer ("net/dense/output").

    Returns:
        The report; `print` it.

    Example:
        >>> import keras
        >>> from jaxbridge.distribution import describe_layouts
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="d1")], name="net")
        >>> print(describe_layouts(model))
        path            shape   dtype    spec  bytes per device  decided by
        -------------  ------  -------  ----  ----------------  ----------
        net/d1/kernel  (3, 2)  float32                       24
        net/d1/bias    (2,)    float32                        8
        in all                                               32
    """
    distribution = keras.distribution.distribution()
    in_effect = _keras_private.layout_map_of(distribution)
    if layout_map is None or layout_map is in_effect:
        rows, layout_map = tuple(_rows(model)), in_effect
    else:
        with keras.distribution.ModelParallel(layout_map=layout_map).scope():
            rows = tuple(_rows(model))
    if layout_map is None:
        return LayoutReport(rows)
    # Keras gives the slots of an optimizer the layout of what they follow, whatever they are called.
    names = [row.path for row in rows if row.source != "slot"]
    names += [f"{layer.path}/output" for layer in subtree(model) if layer.path]
    matches = {name: matching_keys(layout_map, [name]) for name in names}
    used = {row.key for row in rows} | {key for keys in matches.values() for key in keys}
    report = LayoutReport(
        rows,
        tuple(key for key in layout_map if key not in used),
        tuple((path, tuple(keys)) for path, keys in matches.items() if len(keys) > 1),
    )
    for problem in report.problems():
        warnings.warn(problem, stacklevel=2)
    return report


def _rows(model: keras.layers.Layer) -> Iterator[LayoutRow]:
    for variable in model.variables:
        yield _row(variable, _decision(variable))
    optimizer = getattr(model, "optimizer", None)
    for variable in [] if optimizer is None else optimizer.variables:
        yield _row(variable, _slot_decision(variable, model.trainable_variables))


def _row(variable: keras.Variable, decision: Decision) -> LayoutRow:
    layout, shape = assigned_backend_layout(variable), tuple(variable.shape)
    spec = None if layout is None else PartitionSpec(*axes_of_spec(layout_parts(layout)[1], len(shape)))
    held = backends.current().device_bytes(shape, variable.dtype, layout)
    return LayoutRow(variable.path, shape, variable.dtype, spec, held, decision.source, decision.key)


def _decision(variable: keras.Variable) -> Decision:
    """Returns who decided a variable's layout: as it was kept, else as the distribution in effect would decide."""
    kept, layout = remembered(variable), _keras_private.assigned_layout(variable)
    if kept is not None:
        return kept
    if layout is None:
        return Decision()
    decision = decide(variable.path, variable.shape)
    axes = axes_of_spec(layout_parts(layout)[1], len(variable.shape))
    return decision if decision.axes == axes else Decision(axes, source="given")


def _slot_decision(variable: keras.Variable, followed: list[keras.Variable]) -> Decision:
    """Returns the decision for a variable of an optimizer: Keras names a slot by the path of what it follows."""

    def names(other: keras.Variable) -> bool:
        return variable.name.startswith(f"{other.path.replace('/', '_')}_") and other.shape == variable.shape

    other = max(filter(names, followed), key=lambda other: len(other.path), default=None)
    if other is None or _keras_private.assigned_layout(variable) is None:
        return _decision(variable)
    return Decision(source="slot", key=other.path)
