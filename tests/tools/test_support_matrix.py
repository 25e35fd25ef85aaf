"""The environments of the support matrix hold every pair of versions, and its table is made from the results."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import support_matrix as matrix  # noqa: E402


def test_every_possible_pair_is_in_an_environment():
    axes = (matrix.JAX, matrix.TENSORFLOW, matrix.KERAS, matrix.PYTHON)
    rows = [(e.jax, e.tensorflow, e.keras, e.python) for e in matrix.ENVIRONMENTS]
    for one, other in itertools.combinations(range(4), 2):
        wanted = set(itertools.product(axes[one], axes[other])) - matrix.IMPOSSIBLE
        assert wanted <= {(row[one], row[other]) for row in rows}


def test_no_environment_is_impossible():
    for e in matrix.ENVIRONMENTS:
        assert not matrix.IMPOSSIBLE & {(e.jax, e.python), (e.tensorflow, e.python)}


@pytest.mark.parametrize(("text", "file"), [(matrix.table, matrix.TABLE), (matrix.grid, matrix.README)])
def test_the_tables_in_the_documentation_are_those_of_the_results(text: Callable[[Any], str], file: Path):
    rows = json.loads(matrix.RESULTS.read_text(encoding="utf-8"))
    assert text(rows) in file.read_text(encoding="utf-8")


def test_every_environment_has_been_run():
    assert set(json.loads(matrix.RESULTS.read_text(encoding="utf-8"))) == {e.name for e in matrix.ENVIRONMENTS}
