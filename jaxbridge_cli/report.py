"""A diagnosis as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxbridge_cli.diagnosis import NO_TENSORFLOW, WORKS, Diagnosis

_STYLES = {"works": "green", "limited": "yellow", "missing": "yellow", "fails": "bold red"}


def print_diagnosis(found: Diagnosis) -> None:
    """Prints the tables and a last line that says it all."""
    console = Console()
    console.print(_pairs("Versions", {name: version or "not installed" for name, version in found.versions.items()}))
    for title, facts in (("JAX", found.jax), ("TensorFlow", found.tensorflow)):
        if facts is not None:
            console.print(_pairs(title, facts))
    checks = Table(title="Checks", title_justify="left")
    for column in ("check", "result", "detail"):
        checks.add_column(column, overflow="fold")
    for check in found.checks:
        checks.add_row(check.name, Text(check.status, _STYLES[check.status]), Text(check.detail))
    console.print(checks)
    verdicts = {WORKS: "Everything works.", NO_TENSORFLOW: "TensorFlow is not installed; the rest works."}
    console.print(verdicts.get(found.exit_code, "Something does not work, see above."))


def _pairs(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), Text(_text(value)))
    return table


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
