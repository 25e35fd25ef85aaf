"""What a TensorFlow release reads, and what to write for it.

`tf_releases.json` is measured: `tools/measure_tf_releases.py` installs each release and asks it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.export
import tensorflow as tf

from jaxbridge.errors import ConversionError
from jaxbridge.jax2tf import _jax_private, _tf_private
from jaxbridge.jax2tf.stablehlo import parse_version

_TABLE = Path(__file__).with_name("tf_releases.json")
_RELEASE = re.compile(r"tensorflow(?:-cpu)?\s*==\s*(\d+\.\d+(?:\.\d+)?)")


@dataclasses.dataclass(frozen=True)
class Target:
    """What modules are written for.

    Attributes:
        name: as a user would say it.
        stablehlo: the StableHLO version to write.
        calling_convention: the calling convention of `jax.export` to write.
        shardy: whether it reads annotations of the Shardy partitioner.
        dot_algorithms: whether matrix products may ask for an algorithm (`jax.lax.DotAlgorithmPreset`); TensorFlow 2.18
            ends with a segmentation fault.
    """

    name: str
    stablehlo: str
    calling_convention: int
    shardy: bool
    dot_algorithms: bool


@functools.cache
def releases() -> dict[str, Target]:
    """Returns what each measured TensorFlow release reads, oldest first, by its version such as "2.18.1"."""
    rows: dict[str, dict[str, Any]] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {version: Target(name=f"tensorflow=={version}", **row) for version, row in rows.items()}


@functools.cache
def installed() -> Target:
    """Returns what the installed TensorFlow reads: its own word where it says so, else what was measured."""
    measured = _release(tf.__version__) or list(releases().values())[-1]
    return Target(
        f"tensorflow=={tf.__version__}",
        _tf_private.read_version(),
        _tf_private.maximum_calling_convention(),
        measured.shardy,
        measured.dot_algorithms,
    )


def resolve(text: str | None) -> Target:
    """Returns what to write: the older of the target, the installed JAX and the installed TensorFlow, in each respect.

    The installed TensorFlow too, because it runs and checks what is made; newer ones read what is older.

    Args:
        text: "tensorflow==2.18", a StableHLO version such as "1.9.0" (then for the oldest TensorFlow that reads it), or
            None for the installed TensorFlow.

    Raises:
        ConversionError: the text is neither, the release was not measured, or the installed JAX cannot write for it.
    """
    here = installed()
    asked = here if text is None else _asked(text)
    newest, oldest = _jax_private.written_version(), _jax_private.oldest_version()
    convention = min(asked.calling_convention, here.calling_convention)
    if parse_version(asked.stablehlo) < parse_version(oldest):
        raise ConversionError(
            f"The target {asked.name} reads StableHLO {asked.stablehlo} at most; the installed JAX {jax.__version__} "
            f"writes {oldest} to {newest}, so {asked.stablehlo} is outside. Install an older JAX, or choose a newer target."
        )
    if convention < jax.export.minimum_supported_calling_convention_version:
        raise ConversionError(
            f"{asked.name if convention < here.calling_convention else here.name} understands calling convention "
            f"{convention} of jax.export; the installed JAX {jax.__version__} writes "
            f"{jax.export.minimum_supported_calling_convention_version} at least. Choose a newer TensorFlow."
        )
    return Target(
        asked.name,
        min(asked.stablehlo, here.stablehlo, newest, key=parse_version),
        convention,
        asked.shardy and here.shardy,
        asked.dot_algorithms and here.dot_algorithms,
    )


def _asked(text: str) -> Target:
    match = _RELEASE.fullmatch(text.strip())
    if match:
        found = installed() if match[1] == tf.__version__ else _release(match[1])
        if found is None:
            raise ConversionError(
                f"What TensorFlow {match[1]} reads was not measured; these were: {', '.join(releases())}. Give one of them, "
                "or the StableHLO version that it reads, such as '1.9.0'."
            )
        return dataclasses.replace(found, name=text)
    version = parse_version(text)
    if version > parse_version(_jax_private.written_version()):
        raise ConversionError(
            f"The installed JAX writes StableHLO {_jax_private.oldest_version()} to {_jax_private.written_version()}; "
            f"{text!r} is outside."
        )
    readers = [release for release in releases().values() if parse_version(release.stablehlo) >= version]
    reader = readers[0] if readers else installed()
    return dataclasses.replace(reader, name=f"StableHLO {text}", stablehlo=text)


def _release(version: str) -> Target | None:
    """Returns the row of a release; for "2.18" the oldest of it, for a patch release that has none the one before it."""
    rows, wanted = releases(), version.split(".")[:2]
    of_minor = {name: row for name, row in rows.items() if name.split(".")[:2] == wanted}
    before = [row for name, row in of_minor.items() if _numbers(name) <= _numbers(version)]
    return before[-1] if before else next(iter(of_minor.values()), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
