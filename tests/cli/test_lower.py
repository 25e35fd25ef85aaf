"""`jaxbridge lower`."""

import json

import pytest
from click.testing import CliRunner

from jaxbridge.stages.records import DIALECTS
from jaxbridge_cli.commands import STAGES, cli

pytestmark = pytest.mark.keras_backends("jax")

MODEL = "tests.stages.models:mixed"
LAYER = "tests.stages.models:split_layer"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["lower", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_figures_of_a_layer():
    found = json.loads(run(LAYER, "--input", "8,16", "--json"))
    assert found["inputs"] == ["float32[8, 16]"] and found["outputs"] == ["float32[8, 16]"]
    assert found["variables"]["net/params/up/kernel"] == "float32[16, 32]"
    assert found["lowered"]["flops"] == 2 * (2 * 8 * 16 * 32) + 8 * 32
    assert found["compiled"]["argument_size_in_bytes"] == 4 * (8 * 16 + 2 * 16 * 32)
    assert found["not_compiled"] is None


def test_the_table():
    assert "argument size in bytes, compiled" in run(LAYER, "--input", "8,16", "--gradient", "--training")


def test_what_cannot_be_compiled_is_lowered_all_the_same():
    found = json.loads(run(LAYER, "--input", "?,16:bfloat16", "--json"))
    assert found["inputs"] == ["bfloat16[batch, 16]"]
    assert found["lowered"] is None and found["compiled"] is None and "unknown sizes" in found["not_compiled"]


def test_summary():
    assert "FlaxLayer" in run(MODEL, "--summary", "--batch-size", "4")
    found = json.loads(run(MODEL, "--summary", "--batch-size", "4", "--json"))
    assert [row["layer"] for row in found["rows"]] == ["dense", "dropout", "fn", "head"]
    assert found["total"]["parameters"] == 36 + 80 + 98


@pytest.mark.parametrize(
    ("stage", "text"), [("stablehlo", "stablehlo.dot"), ("hlo", "dot("), ("compiled", "HloModule")]
)
def test_texts(stage: str, text: str):
    assert text in run(LAYER, "--input", "8,16", "--text", stage)


def test_every_text_can_be_asked_for():
    assert (*DIALECTS, "compiled") == STAGES


MISTAKES = [
    (["nothing"], 2, "must name a module and a function"),
    (["no_such_module:make"], 2, "There is no module 'no_such_module'"),
    (["tests.stages.models:no_such_function"], 2, "has no 'no_such_function'"),
    (["tests.stages.models:WEIGHTS"], 2, "name a function without arguments"),
    ([LAYER, "--input", "8,x"], 2, "cannot be read. Write for instance"),
    ([LAYER, "--input", "8:word"], 2, "cannot be read. Write for instance"),
    ([LAYER], 1, "Nothing says what 'net' is called with. Say it: `--input 8,28,28,1`."),
    ([LAYER, "--summary"], 1, "Nothing says what 'net' is called with. Say it: `--input 8,28,28,1`."),
    ([LAYER, "--summary", "--input", "?,16"], 1, "Give sizes that are numbers, such as 8, 28, 28, 1."),
    (
        ["tests.stages.models:UpDown"],
        1,
        "It is a module: wrap it in a layer, `lambda: jaxbridge.FlaxLayer(UpDown(...))`.",
    ),
    (
        [LAYER, "--input", "8,16", "--platform", "tpu", "--text", "compiled"],
        1,
        "was lowered for tpu, and JAX runs on cpu here. Lower it for cpu, the default.",
    ),
    ([LAYER, "--input", "8,16", "--platform", "gpu"], 1, "must be a sequence out of"),
    ([MODEL, "--input", "8,9"], 1, "expected axis -1 of input shape to have value 8"),
    ([MODEL, "--summary", "--gradient"], 2, "--summary goes with neither"),
    ([MODEL, "--text", "hlo", "--json"], 2, "give one of them"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES)
def test_mistakes(arguments: list[str], code: int, message: str):
    assert message in " ".join(run(*arguments, code=code).split())
