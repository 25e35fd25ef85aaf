"""Which custom calls TensorFlow can run, as data, and the audit of a module against it before anything is written.

A custom call is a name that the process which runs a module must have registered. TensorFlow has no function that lists
what it has, and learns of a name that it lacks when the module runs: on somebody else's machine. The rows for CPU were
measured with `tools/measure_custom_calls.py`, which runs a module per custom call in a process of its own, in each of
`MEASURED`. The others come from the sources that they name and are not measured.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

#: TensorFlow releases in which the CPU column was measured; all of them gave the same.
MEASURED = ("2.17", "2.18", "2.19", "2.20", "2.21")


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """A row of the table.

    Attributes:
        target: name of the custom call; `*` stands for any text.
        runs_on: the platforms on which TensorFlow runs it.
        source: where that is known from, for the platforms that were not measured.
        measured: whether the entry for CPU was measured.
    """

    target: str
    runs_on: frozenset[str]
    source: str
    measured: bool = True


_ALL = frozenset({"cpu", "cuda", "rocm", "tpu"})
_NONE: frozenset[str] = frozenset()
_EXPANDED = (
    "XLA's EighExpander, QrExpander and HouseholderExpander are in its CPU and GPU compilers; TPUs have them built in"
)
_REFINED = "TensorFlow's XlaCallModule op rewrites it when shapes are known, before any compiler sees it"
_UNPACKED = "XLA reads it as the operation of that name, before any compiler sees it; JAX 0.7 writes it"
_JAXLIB = "registered by jaxlib"

TABLE = (
    CustomCall("Eigh", _ALL, _EXPANDED),
    CustomCall("Qr", _ALL, _EXPANDED),
    CustomCall("ProductOfElementaryHouseholderReflectors", _ALL, _EXPANDED),
    CustomCall("mhlo.topk", _ALL, _UNPACKED),
    CustomCall("mhlo.erf", _ALL, _UNPACKED),
    CustomCall("shape_assertion", _ALL, _REFINED),
    CustomCall("stablehlo.dynamic_*", _ALL, _REFINED, measured=False),
    CustomCall("Sharding", _ALL, "XLA's partitioner removes it"),
    CustomCall("SPMDFullToShardShape", _ALL, "XLA's partitioner removes it"),
    CustomCall("SPMDShardToFullShape", _ALL, "XLA's partitioner removes it"),
    CustomCall("annotate_device_placement", _ALL, "XLA's host offloader removes it", measured=False),
    CustomCall("AllocateBuffer", _ALL, "XLA has it on every platform"),
    CustomCall("LuDecomposition", frozenset({"tpu"}), "built into the TPU compiler"),
    CustomCall("ApproxTopK", _ALL, "built into the TPU compiler; elsewhere it carries a sort, which XLA takes"),
    CustomCall("tpu_custom_call", frozenset({"tpu"}), "Pallas kernels; built into the TPU compiler"),
    CustomCall("__cudnn$*", frozenset({"cuda"}), "XLA's GPU compiler", measured=False),
    CustomCall("lapack_*", _NONE, _JAXLIB),
    CustomCall("cusolver_*", _NONE, _JAXLIB, measured=False),
    CustomCall("hipsolver_*", _NONE, _JAXLIB, measured=False),
    CustomCall("cu*_ffi", _NONE, _JAXLIB, measured=False),
    CustomCall("hip*_ffi", _NONE, _JAXLIB, measured=False),
    CustomCall("xla_*python*_callback", _NONE, _JAXLIB, measured=False),
    CustomCall("tf.call_tf_function", _NONE, "needs the op's `function_list`, which is not written", measured=False),
)


class Missing(NamedTuple):
    """A custom call that TensorFlow does not have on a platform."""

    target: str
    primitive: str
    platform: str


def row_of(target: str) -> CustomCall | None:
    """Returns the first row that a custom call fits, None for one that nobody has looked at."""
    return next((row for row in TABLE if fnmatch.fnmatchcase(target, row.target)), None)


def runs_on(target: str, platform: str) -> bool:
    """Returns whether TensorFlow runs a custom call on a platform; what is not in the table does not run.

    Example:
        >>> from jaxbridge.jax2tf import audit
        >>> audit.runs_on("Qr", "cpu"), audit.runs_on("lapack_sgetrf_ffi", "cpu")
        (True, False)
    """
    row = row_of(target)
    return row is not None and platform in row.runs_on


def missing_calls(
    calls: Iterable[tuple[str, str]], platforms: Sequence[str], allowed: Collection[str] = ()
) -> list[Missing]:
    """Returns which custom calls TensorFlow does not have, per platform.

    Args:
        calls: target and primitive of each custom call of a module.
        platforms: the platforms that the module is for.
        allowed: targets that the user promises to register.
    """
    return [
        Missing(target, primitive, platform)
        for target, primitive in calls
        for platform in platforms
        if not ({target, "ALL"} & set(allowed) or runs_on(target, platform))
    ]
