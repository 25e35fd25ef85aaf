"""Checks that need devices of their own: a process runs them all, and a test looks at each.

The number of devices is fixed when JAX or TensorFlow starts, and starting takes longer than most checks, so checks for the
same devices share a process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

#: No check takes minutes: what is longer hangs.
TIMEOUT = 900


class Checks(dict[str, Callable[[], None]]):
    """Checks by name; `@checks.of(rows)` adds one per row of a table, `@checks.of()` a single one."""

    def of(self, rows: Mapping[str, Any] | Iterable[Any] | None = None) -> Callable[[Any], Any]:
        def add(check: Callable[..., None]) -> Callable[..., None]:
            if rows is None:
                self[check.__name__] = check
            elif isinstance(rows, Mapping):
                self.update({f"{check.__name__}[{row}]": lambda row=value: check(row) for row, value in rows.items()})
            else:
                self.update({f"{check.__name__}[{row}]": lambda row=row: check(row) for row in rows})
            return check

        return add


def assert_equal(got: Any, expected: Any) -> None:
    """Says what differs: assertions are rewritten by pytest only in the files that it collects."""
    assert got == expected, f"{got!r} should be {expected!r}"


def message(fn: Callable[[], Any]) -> str:
    """Returns the error that a function raises, as text; "" if it raises none."""
    try:
        fn()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run(modules: Iterable[str], backend: str, devices: int, folder: Path) -> dict[str, str | None]:
    """Runs the checks of some modules in a new process; returns what each raised, None where it passed."""
    path = folder / "results.json"
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
    }
    command = [sys.executable, "-m", "tests.distribution.checks", str(path), *modules]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stdout
    return json.loads(path.read_text(encoding="utf-8"))


def main(path: str, modules: list[str]) -> None:
    results: dict[str, str | None] = {}
    for name in modules:
        module = importlib.import_module(name)
        getattr(module, "setup", lambda: None)()
        for name, check in module.CHECKS.items():
            try:
                check()
            except Exception:
                results[name] = traceback.format_exc()
            else:
                results[name] = None
    Path(path).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
