"""What files say of sharding: a record per layer, gathered while a function is traced and written on its op."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbridge.core import specs
from jaxbridge.core.specs import Specs
from jaxbridge.errors import ShardingError

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """How the arrays of a layer are split, in mesh axes.

    Attributes:
        layer: the layer's path.
        axes: names and sizes of the mesh's axes.
        params: the full Keras path of each variable that somebody said something of, and its spec.
        inputs: path in the structure of the layer's inputs -> spec.
        outputs: path in the structure of the layer's outputs -> spec.
    """

    layer: str
    axes: tuple[tuple[str, int], ...]
    params: Specs
    inputs: Specs = ()
    outputs: Specs = ()


def to_json(records: Sequence[Record]) -> str:
    """Returns records as JSON text, the same for equal records."""
    listed = lambda said: {path: specs.spec_to_list(spec) for path, spec in said}
    content = [
        {
            "layer": record.layer,
            "mesh": [list(axis) for axis in record.axes],
            "params": listed(record.params),
            "inputs": listed(record.inputs),
            "outputs": listed(record.outputs),
        }
        for record in records
    ]
    return json.dumps({"format": _FORMAT, "layers": content}, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> list[Record]:
    """Returns the records that `to_json` wrote.

    Raises:
        ShardingError: the text is damaged, or of a newer format.
    """
    try:
        content = json.loads(text)
        number = content["format"]
        if type(number) is int and number > _FORMAT:
            raise ShardingError(
                f"What the file says of sharding has the format {number}, and this version of jaxbridge reads {_FORMAT}: "
                "pip install -U jaxbridge."
            )
        return [_record(one) for one in content["layers"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, ShardingError):
            raise
        raise ShardingError(
            f"What the file says of sharding is damaged: {text!r:.200} ({type(error).__name__}: {error}). Export the model "
            "again."
        ) from error


def _record(one: dict[str, Any]) -> Record:
    axes = tuple((name, size) for name, size in one["mesh"])
    if not isinstance(one["layer"], str) or not all(isinstance(n, str) and type(s) is int and s > 0 for n, s in axes):
        raise TypeError(f"the layer is {one['layer']!r:.80}, the mesh {axes!r:.80}")
    said = [tuple((p, specs.spec_from_list(s)) for p, s in one[n].items()) for n in ("params", "inputs", "outputs")]
    return Record(one["layer"], axes, *said)


_gathered: contextvars.ContextVar[dict[Record, None] | None] = contextvars.ContextVar("gathered", default=None)


@contextlib.contextmanager
def gathering() -> Iterator[dict[Record, None]]:
    """Returns a context, and the records (as keys, in order) of the layers that are called in it."""
    found: dict[Record, None] = {}
    with _in_effect(found):
        yield found


@contextlib.contextmanager
def recorded(*found: Record | None) -> Iterator[None]:
    """Returns a context for the call of a layer, or of several at once: who gathers has their records (None: it has none),
    and so has an op that is made in it."""
    own = {record: None for record in found if record is not None}
    if not own:
        yield
        return
    outer = _gathered.get()
    if outer is not None:
        outer.update(own)
    with _in_effect(own):
        yield


def note(record: Record | None) -> None:
    """Adds a record that belongs to no layer to those that are gathered."""
    found = _gathered.get()
    if found is not None and record is not None:
        found[record] = None


def written(records: dict[Record, None]) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which ops that are made have these records; none leaves those in effect."""
    return _in_effect(records) if records else contextlib.nullcontext()


def in_effect() -> list[Record]:
    """Returns the records of the op that is being made."""
    return list(_gathered.get() or ())


@contextlib.contextmanager
def _in_effect(found: dict[Record, None] | None) -> Iterator[None]:
    token = _gathered.set(found)
    try:
        yield
    finally:
        _gathered.reset(token)
