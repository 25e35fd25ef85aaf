"""The process with Keras on JAX, started for the first question and kept for the next ones."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from typing import Any

from jaxbridge import errors
from jaxbridge.errors import LoweringError


class Process:
    """A process of `jaxbridge.stages.worker`. It ends with the process that started it, when its input does.

    Args:
        environment: variables of its environment, beside this process' own.
    """

    def __init__(self, environment: dict[str, str]):
        path = os.pathsep.join(filter(None, sys.path))
        # Of no use but to say why the process ended, so open as long as it runs.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._child = subprocess.Popen(
            [sys.executable, "-m", "jaxbridge.stages.worker"],
            env={**os.environ, **environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def ask(self, question: Any) -> Any:
        """Returns the answer to a question.

        Raises:
            JaxBridgeError: what was raised there; a LoweringError where that is no error of jaxbridge.
            EOFError: the process has ended.
        """
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            pickle.dump(question, self._child.stdin)
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        kind, value = pickle.load(self._child.stdout)
        if kind == "answer":
            return value
        name, message = value
        known = getattr(errors, name, None)
        if known is not None:
            raise known(message)
        raise LoweringError(f"In the process with Keras on JAX, which lowers native layers: {name}: {message}")

    def stop(self) -> str:
        """Ends the process; returns the last of what it wrote."""
        self._child.kill()
        self._child.wait()
        self._errors.seek(0)
        return self._errors.read().strip()[-4000:]


def _settings() -> dict[str, str]:
    """Returns the variables of the environment that a process reads once, when it starts."""
    return {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_", "KERAS_"))}


_lock = threading.Lock()
_running: tuple[Any, Process] | None = None


def ask(question: Any, environment: dict[str, str]) -> Any:
    """Returns the answer of the process with this environment; the one that runs, if it was started with the same.

    Raises:
        JaxBridgeError: what was raised there, or that it ended without an answer.
    """
    global _running
    with _lock:
        conditions = (environment, _settings(), list(sys.path))
        if _running is not None and _running[0] != conditions:
            _stop()
        if _running is None:
            _running = (conditions, Process(environment))
        try:
            return _running[1].ask(question)
        except errors.JaxBridgeError:
            raise
        except EOFError as error:
            raise LoweringError(f"The process with Keras on JAX ended without an answer:\n{_stop()}") from error
        except BaseException:  # interrupted: the answer would be taken for the next question's
            _stop()
            raise


def stop() -> None:
    """Ends the process, if one runs; the next question starts another."""
    with _lock:
        _stop()


def _stop() -> str:
    """Ends the process; returns the last of what it wrote."""
    global _running
    running, _running = _running, None
    return "" if running is None else running[1].stop()
