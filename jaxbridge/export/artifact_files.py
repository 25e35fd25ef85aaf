"""The functions of `jax.export` beside a SavedModel, as files. What is read is checked: it may be damaged, or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax.export
import numpy as np

from jaxbridge.core.records import Record, from_json, to_json
from jaxbridge.errors import ExportError

#: Below `assets.extra` of a SavedModel, which servers leave to their users.
_FOLDER = Path("assets.extra", "jaxbridge")
_INDEX = "artifacts.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A function `(params, state, inputs) -> (outputs, new state)` of dicts of arrays by path and a flat list of arrays.

    Attributes:
        layer: the path of the layer; "" for the whole model.
        params: the paths of the trainable variables, and the number of each among the SavedModel's variables.
        state: the same for the other variables.
        records: what the layers in it say of sharding.
        has_vjp: whether it can be differentiated.
        serialized: what `jax.export` wrote.
    """

    layer: str
    params: dict[str, int]
    state: dict[str, int]
    records: tuple[Record, ...]
    has_vjp: bool
    serialized: bytes


def write(artifacts: Sequence[Artifact], directory: Path) -> None:
    """Writes artifacts below a SavedModel's directory."""
    folder = directory / _FOLDER
    folder.mkdir(parents=True)
    index = []
    for number, artifact in enumerate(artifacts):
        file = f"{number}.jaxexport"
        (folder / file).write_bytes(artifact.serialized)
        facts = {field: getattr(artifact, field) for field in ("layer", "params", "state", "has_vjp")}
        facts |= {"file": file, "sha256": _digest(artifact.serialized)}
        index.append({**facts, "records": json.loads(to_json(artifact.records))})
    content = {"format": _FORMAT, "jaxbridge": metadata.version("jaxbridge"), "artifacts": index}
    (folder / _INDEX).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read(directory: Path) -> list[Artifact]:
    """Returns the artifacts of a SavedModel; none if it has none.

    Raises:
        ExportError: a file is damaged, of a newer format, or names another outside its folder.
        ShardingError: a record of sharding is.
    """
    folder = directory / _FOLDER
    path = folder / _INDEX
    if not path.exists():
        return []
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    _check(isinstance(index, dict), path, "it is no JSON object")
    _check_format(index, path)
    found = index.get("artifacts")
    _check(isinstance(found, list) and all(isinstance(facts, dict) for facts in found), path, "'artifacts' is no list")
    return [_artifact(facts, folder, path) for facts in found]


def _check_format(index: dict[str, Any], path: Path) -> None:
    number, version = index.get("format"), index.get("jaxbridge")
    _check(type(number) is int and number >= _FORMAT, path, f"its format is {number!r:.80}")
    if number != _FORMAT:
        is_version = isinstance(version, str) and re.fullmatch(r"[0-9][0-9A-Za-z.+]{0,30}", version)
        wanted = (
            f"jaxbridge {version} wrote it: pip install 'jaxbridge>={version}'"
            if is_version
            else "pip install -U jaxbridge"
        )
        raise ExportError(f"{path} has the format {number}, and this version of jaxbridge reads {_FORMAT}; {wanted}.")


def _artifact(facts: dict[str, Any], folder: Path, path: Path) -> Artifact:
    is_numbered = lambda value: isinstance(value, dict) and all(type(n) is int and n >= 0 for n in value.values())
    forms = {
        "layer": lambda value: isinstance(value, str),
        "params": is_numbered,
        "state": is_numbered,
        "has_vjp": lambda value: isinstance(value, bool),
        "records": lambda value: isinstance(value, dict),
        "file": lambda value: isinstance(value, str),
        "sha256": lambda value: isinstance(value, str | None),  # earlier files have none
    }
    for name, is_fit in forms.items():
        _check(is_fit(facts.get(name)), path, f"'{name}' is {facts.get(name)!r:.80}")
    serialized = _bytes_of(facts["file"], folder, path)
    if facts.get("sha256") not in (None, _digest(serialized)):
        raise _damaged(folder / facts["file"], "it is not what was written")
    records = tuple(from_json(json.dumps(facts["records"])))
    _check(records, path, "its layers say nothing of sharding")
    return Artifact(facts["layer"], facts["params"], facts["state"], records, facts["has_vjp"], serialized)


def _bytes_of(name: str, folder: Path, index: Path) -> bytes:
    """Returns the content of a file beside the index."""
    file = folder / name
    is_plain = name not in ("", ".", "..") and not set(name) & set("/\\:\0")
    if not is_plain or file.resolve().parent != folder.resolve():
        raise ExportError(
            f"{index} names the file {name!r:.200}, which leaves its folder; it is not read. If it is a link that you "
            "made, put a copy in its place."
        )
    try:
        return file.read_bytes()
    except OSError as error:
        raise _damaged(file, str(error)) from error


def exported_of(artifact: Artifact) -> jax.export.Exported:
    """Returns the function of an artifact.

    Raises:
        ExportError: it is damaged.
    """
    try:
        exported = jax.export.deserialize(bytearray(artifact.serialized))
        count, have = len(artifact.params) + len(artifact.state), len(exported.in_avals)
        exported.mlir_module()
    except Exception as error:  # the reader of flatbuffers raises what it stumbles over, MLIR's its own
        raise ExportError(
            f"The function of layer '{artifact.layer}' cannot be read: the file is damaged, or of a newer JAX than the "
            f"installed {jax.__version__}. Export the model again. ({type(error).__name__}: {error})"
        ) from error
    if count > have:
        raise ExportError(
            f"The function of layer '{artifact.layer}' takes {have} arrays, and {count} variables are named."
        )
    return exported


def values(artifact: Artifact, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the values of params and state of an artifact, from the SavedModel's checkpoint.

    Raises:
        ExportError: the checkpoint is damaged, or does not have them.
    """
    import tensorflow as tf

    prefix = directory / "variables" / "variables"
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        value = lambda number: reader.get_tensor(f"model_variables/{number}/.ATTRIBUTES/VARIABLE_VALUE")
        read_all = lambda numbers: {path: value(number) for path, number in numbers.items()}
        return read_all(artifact.params), read_all(artifact.state)
    except (tf.errors.OpError, ValueError, RuntimeError, OSError, LookupError) as error:
        raise _damaged(prefix, f"{type(error).__name__}: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check(is_fit: Any, path: Path, what: str) -> None:
    if not is_fit:
        raise _damaged(path, what)


def _damaged(path: Path, what: str) -> ExportError:
    return ExportError(f"{path} is damaged, or was not written by jaxbridge: {what}. Export the model again.")
