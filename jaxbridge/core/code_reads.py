"""What a piece of Python code reads from outside of itself."""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple


class Reads(NamedTuple):
    """The names that code, and the code inside it, reads.

    Attributes:
        chains: each global name with the attributes that are read of it at once: ("jnp", "linalg", "inv").
        imports: names of the modules that it imports itself; "" for a relative import.
    """

    chains: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> Reads:
    """Returns what code reads."""
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[str, None] = {}
    chain: list[str] = []
    level = None
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if chain and name in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(instruction.argval)
            continue
        if chain:
            chains[tuple(chain)] = None
        chain = [instruction.argval] if name in ("LOAD_GLOBAL", "LOAD_NAME") else []
        if name == "IMPORT_NAME":
            imports["" if level else instruction.argval] = None
        if name in ("LOAD_CONST", "LOAD_SMALL_INT") and isinstance(instruction.argval, int):
            level = instruction.argval  # an import is preceded by its level and its names
    if chain:
        chains[tuple(chain)] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inside = reads_of(constant)
            chains.update(dict.fromkeys(inside.chains))
            imports.update(dict.fromkeys(inside.imports))
    return Reads(tuple(chains), tuple(imports))
