"""Floor 6: the command `jaxbridge`, also `python -m jaxbridge`. Needs the extra `cli` (click and rich)."""

from __future__ import annotations

import sys

from jaxbridge._optional import require
from jaxbridge.errors import MissingDependencyError


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    try:
        require("click", "The command `jaxbridge`")
        require("rich", "The command `jaxbridge`")
    except MissingDependencyError as error:
        sys.exit(str(error))
    from jaxbridge.cli.commands import cli

    cli()
