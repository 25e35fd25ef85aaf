"""Every `>>>` example of the package is right, on the current backend."""

import doctest
import importlib
from pathlib import Path

import keras
import pytest

import jaxbridge

PACKAGE = Path(jaxbridge.__file__).parent
WITH_EXAMPLES = sorted(file for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_examples(file):
    name = ".".join(["jaxbridge", *file.relative_to(PACKAGE).with_suffix("").parts])
    module = importlib.import_module(name.removesuffix(".__init__"))
    keras.utils.clear_session()
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.attempted > 0 and found.failed == 0
