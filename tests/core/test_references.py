"""References to functions and classes, for another process."""

import sys

import pytest

from jaxbridge.core.references import Reference


class Outer:
    class Inner:
        pass


def function():
    return 1


@pytest.mark.parametrize("target", [function, Outer, Outer.Inner], ids=lambda target: target.__qualname__)
def test_what_has_a_name_is_found_again(target):
    assert Reference.to(target).load() is target


@pytest.mark.parametrize("target", [lambda: 1, len, 3, type("Made", (), {"__module__": "builtins"})], ids=repr)
def test_what_has_none_is_not(target):
    assert Reference.to(target) is None


def test_a_module_that_is_no_longer_importable_is_found_by_its_file(tmp_path):
    file = tmp_path / "elsewhere_only.py"
    file.write_text("def make():\n    return __name__\n")
    assert Reference("elsewhere_only", str(file), "make").load()() == "elsewhere_only"
    del sys.modules["elsewhere_only"]
