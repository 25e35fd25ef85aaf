"""The command `jaxbridge`. Needs the extra `cli` (click and rich).

A package of its own, as it must speak where `import jaxbridge`, which imports Keras and JAX, fails.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        remedy = "Install it with `pip install 'jaxbridge[cli]'`."
        sys.exit(f"The command `jaxbridge` needs {error.name}, which is not installed. {remedy}")
    from jaxbridge_cli.commands import cli

    cli()
