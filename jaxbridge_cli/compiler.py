"""What the compiler says of a layer or model, printed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import jax
import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from jaxbridge.core.tree_paths import describe_leaf
from jaxbridge.errors import LoweringError
from jaxbridge.stages import Lowered, lower, summary
from jaxbridge.stages.abstract import declared_inputs as declared_inputs
from jaxbridge.stages.records import DIALECTS


def find_function(context: Any, option: Any, text: str) -> Callable[[], Any]:
    """Returns the function that "module:function" names; modules are also looked for in the working directory."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise click.BadParameter(f"{text!r} must name a module and a function in it: my_models:build_model.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that it imports
        raise click.BadParameter(f"There is no module {module!r} here or among the installed ones.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"The module {module!r} has no {name!r}.")
        found = getattr(found, part)
    if not callable(found) or isinstance(found, keras.layers.Layer):
        raise click.BadParameter(f"{text} is {found!r}; name a function without arguments that makes a layer or model.")
    return found


def read_inputs(context: Any, option: Any, texts: Sequence[str]) -> tuple[keras.KerasTensor, ...]:
    """Returns the inputs that "8,128:int32" and its like describe."""
    return tuple(map(_read_input, texts))


def _read_input(text: str) -> keras.KerasTensor:
    shape, _, dtype = text.partition(":")
    try:
        sizes = [None if size.strip() == "?" else int(size) for size in shape.strip("()[] ").split(",") if size.strip()]
        return keras.KerasTensor(sizes, np.dtype(dtype or keras.config.floatx()).name)
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"{text!r} cannot be read. Write for instance 32,28,28,1 or 8,128:int32.") from error


def print_summary(target: Any, inputs: Any, training: bool, as_json: bool) -> None:
    """Prints what each layer costs."""
    found = summary(target, inputs, training)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        Console().print(found)


def program_text(
    target: Any, inputs: Any, training: bool, platforms: Sequence[str] | None, gradient: bool, stage: str
) -> str:
    """Returns the program at a stage."""
    lowered = lower(target, inputs, training, platforms, gradient=gradient)
    if stage in DIALECTS:
        return lowered.as_text(stage)
    text = lowered.compile().as_text()
    if text is None:
        raise LoweringError("This platform does not write its compiled programs.")
    return text


def print_figures(
    target: Any, inputs: Any, training: bool, platforms: Sequence[str] | None, gradient: bool, as_json: bool
) -> None:
    """Prints the figures of the program before and after it is compiled."""
    found = _figures(lower(target, inputs, training, platforms, gradient=gradient))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    table = Table(show_header=False)
    for name in ("inputs", "outputs"):
        table.add_row(name, ", ".join(found[name]))
    table.add_row("variables", f"{len(found['variables']):,}")
    for stage in ("lowered", "compiled"):
        for name, value in (found[stage] or {}).items():
            table.add_row(f"{name.replace('_', ' ')}, {stage}", "-" if value is None else f"{value:,.0f}")
    console = Console()
    console.print(table)
    if found["not_compiled"]:
        console.print(found["not_compiled"], highlight=False, markup=False)


def _figures(lowered: Lowered) -> dict[str, Any]:
    variables, inputs = lowered.args_info[0][:2]
    found: dict[str, Any] = {
        "inputs": list(map(describe_leaf, jax.tree.leaves(inputs))),
        "outputs": list(map(describe_leaf, jax.tree.leaves(lowered.out_info[0]))),
        "variables": {path: describe_leaf(struct) for path, struct in variables.items()},
        "lowered": _counts(lowered.cost_analysis()),
        "compiled": None,
        "not_compiled": None,
    }
    try:
        compiled = lowered.compile()
    except LoweringError as error:  # what was lowered can be looked at all the same
        return found | {"not_compiled": str(error)}
    memory = compiled.memory_analysis()
    return found | {
        "compiled": (_counts(compiled.cost_analysis()) or {}) | (dataclasses.asdict(memory) if memory else {}),
        "shardings": {
            path: str(sharding.spec)
            for path, sharding in compiled.input_shardings[0][0].items()
            if isinstance(sharding, jax.sharding.NamedSharding)
        },
    }


def _counts(cost: dict[str, float] | None) -> dict[str, float] | None:
    names = ("flops", "transcendentals", "bytes accessed")
    return None if cost is None else {name.replace(" ", "_"): cost.get(name, 0.0) for name in names}
