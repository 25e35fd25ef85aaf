"""The commands and their options."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from jaxbridge.cli import report
from jaxbridge.cli.diagnosis import diagnose
from jaxbridge.cli.versions import TESTED_BACKENDS


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jaxbridge")
def cli() -> None:
    """JAX code inside Keras, on its JAX and TensorFlow backends, out to SavedModels."""


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--self-test/--no-self-test", default=True, help="Convert, export and serve a small model (the default).")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(TESTED_BACKENDS),
    help="Run the self-test on this Keras backend; may be repeated. Default: all.",
)
def doctor(as_json: bool, self_test: bool, backends: tuple[str, ...]) -> None:
    """Say what is installed here, and whether it works together.

    Exit code: 0 all works; 1 something does not; 3 TensorFlow is not installed, the rest works.
    """
    found = diagnose((backends or TESTED_BACKENDS) if self_test else ())
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found) | {"exit_code": found.exit_code}, indent=2))
    else:
        report.print_diagnosis(found)
    sys.exit(found.exit_code)
