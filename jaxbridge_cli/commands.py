"""The commands and their options."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click

from jaxbridge_cli import report
from jaxbridge_cli.diagnosis import diagnose
from jaxbridge_cli.steps import one_line
from jaxbridge_cli.versions import TESTED_BACKENDS

#: The texts that `lower` prints; here, as the module that prints them imports Keras.
STAGES = ("stablehlo", "hlo", "compiled")


def _compiler() -> ModuleType:
    """Returns the module behind `lower`, imported now: the other commands speak where Keras cannot be imported.

    Raises:
        ClickException: it cannot be imported here.
    """
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "jax"  # the one on which every layer and model is a JAX function
    try:
        from jaxbridge_cli import compiler
    except Exception as error:  # what Keras and JAX raise where they are broken
        raise click.ClickException(
            f"jaxbridge cannot be imported on Keras' JAX backend: {one_line(error)}. `jaxbridge doctor` looks at all of it."
        ) from error
    return compiler


def _read_by(name: str) -> Callable[[Any, Any, Any], Any]:
    """Returns the callback of an option that the function of this name reads."""
    return lambda context, option, value: getattr(_compiler(), name)(context, option, value)


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


@cli.command()
@click.argument("target", metavar="MODULE:FUNCTION", callback=_read_by("find_function"))
@click.option(
    "--input",
    "inputs",
    multiple=True,
    callback=_read_by("read_inputs"),
    metavar="SHAPE[:DTYPE]",
    help="A positional input, such as 32,28,28,1 or 8,128:int32; ? is an unknown size. Default: what the model declares.",
)
@click.option("--batch-size", default=1, show_default=True, help="Size of axis 0 where the model leaves it open.")
@click.option("--training", is_flag=True, help="Lower the call in training mode.")
@click.option("--gradient", is_flag=True, help="Lower the backward pass too.")
@click.option("--platform", "platforms", multiple=True, help="Lower for it: cpu, cuda, rocm or tpu; may be repeated.")
@click.option("--summary", "as_summary", is_flag=True, help="Print what each layer costs.")
@click.option("--text", "stage", type=click.Choice(STAGES), help="Print the program at this stage.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def lower(
    target: Any,
    inputs: Any,
    batch_size: int,
    training: bool,
    gradient: bool,
    platforms: tuple[str, ...],
    as_summary: bool,
    stage: str | None,
    as_json: bool,
) -> None:
    """Say what the compiler makes of a layer or model, without running it or making its weights.

    MODULE:FUNCTION is a function without arguments that makes it. It runs on Keras' JAX backend.
    """
    if as_summary and (gradient or platforms or stage):
        raise click.UsageError("--summary goes with neither --gradient, nor --platform, nor --text.")
    if stage and as_json:
        raise click.UsageError("--text prints a program, --json figures: give one of them.")
    compiler = _compiler()
    from jaxbridge.errors import JaxBridgeError

    given = inputs or compiler.declared_inputs(batch_size, "Say it: `--input 8,28,28,1`.")
    try:
        if as_summary:
            compiler.print_summary(target, given, training, as_json)
        elif stage:
            click.echo(compiler.program_text(target, given, training, platforms or None, gradient, stage))
        else:
            compiler.print_figures(target, given, training, platforms or None, gradient, as_json)
    except JaxBridgeError as error:
        raise click.ClickException(str(error)) from error
    except (TypeError, ValueError) as error:  # inputs that do not suit the model
        raise click.ClickException(f"{type(error).__name__}: {error}") from error
