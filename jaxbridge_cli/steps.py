"""Steps taken in a process of its own, which says after each how it went: a broken installation can end a process."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

_TIMEOUT = 600.0
_MARK = "STEP "


@dataclasses.dataclass(frozen=True)
class Step:
    """How a step went.

    Attributes:
        name: of the step.
        error: why it failed; "" where it did not.
        found: what it returned, in JSON's types; None where it failed.
        missing: the module that was not there, where that is why it failed; "" otherwise.
    """

    name: str
    error: str = ""
    found: Any = None
    missing: str = ""


def take(name: str, function: Callable[[], Any]) -> Step:
    """Takes a step in the process that was started for it, and prints how it went."""
    try:
        step = Step(name, found=function())
    except Exception as failure:  # the verdict is the message; a broken installation raises anything
        missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
        step = Step(name, one_line(failure), missing=missing or "")
    print(_MARK + json.dumps(dataclasses.asdict(step)), flush=True)
    return step


def one_line(error: BaseException) -> str:
    """Returns an exception as one line; JAX and TensorFlow raise some without a message."""
    text = " ".join(str(error).split())[:1000]
    return f"{type(error).__name__}: {text}" if text else f"{type(error).__name__} without a message"


def start(module: str, arguments: Sequence[str], **environment: str) -> tuple[list[Step], str]:
    """Runs a module that takes steps, and returns these and how it ended; "" where it ended well."""
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    command = [sys.executable, "-m", module, *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env=variables, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
        return _steps(printed.decode(errors="replace") if isinstance(printed, bytes) else printed), (
            f"did not end within {_TIMEOUT:.0f} seconds"
        )
    return _steps(ended.stdout), _ending(ended)


def _steps(printed: str) -> list[Step]:
    return [Step(**json.loads(line.removeprefix(_MARK))) for line in printed.splitlines() if line.startswith(_MARK)]


def _ending(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode == 0:
        return ""
    try:
        how = f"signal {signal.Signals(-ended.returncode).name}"
    except ValueError:
        how = f"exit code {ended.returncode}"
    last = (ended.stderr.strip().splitlines() or ["it printed no error"])[-1]
    return f"ended with {how}: {last[:500]}"
