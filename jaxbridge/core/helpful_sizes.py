"""What to say of sizes so that a function that cannot be traced for unknown ones can be."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from jaxbridge.core import dims
from jaxbridge.core.shapes import Signature

#: Strides of convolutions and pools, and their products.
_FACTORS = (2, 4, 8, 16, 32)


def advice(error: BaseException, signature: Signature, works: Callable[[Signature], bool]) -> str | None:
    """Returns a sentence that says what to write about sizes; None where that is not what the function fails for.

    Args:
        error: what was raised for the sizes of the signature.
        signature: the signature.
        works: traces the function with another signature.
    """
    for candidate in _candidates(error, signature):
        if works(candidate):
            return f"It can for {_written(candidate, signature)}."
    for concrete in signature.trials():
        if works(concrete):
            return (
                "Give the sizes (`keras.Input((28, 28, 1), batch_size=...)`), or say what is known of them "
                "(`polymorphic_shapes='(b, 4*k)'`, `polymorphic_constraints=('k >= 2',)`)."
            )
    return None


def _candidates(error: BaseException, signature: Signature) -> list[Signature]:
    compared = re.search(r"comparison '([^']+)' (?:<|<=|>|>=|==|!=) '([^']+)' is inconclusive", str(error))
    symbols, first = signature.symbols(), {dims.split_shape(shape)[0] for shape in signature.shapes if shape != "()"}
    behind = [name for name in symbols if name not in first]
    found = []
    for names in filter(None, (behind, symbols if symbols != behind else [])):
        found += [signature.with_sizes({name: f"{factor}*{name}" for name in names}) for factor in _FACTORS]
    if compared is not None:
        left, right = compared[1], compared[2]
        added = [f"{left} >= {right}", f"{left} <= {right}", f"{left} >= {right} + 1", f"{left} <= {right} - 1"]
        found = [dataclasses.replace(signature, constraints=(*signature.constraints, one)) for one in added] + found
    return found


def _written(candidate: Signature, signature: Signature) -> str:
    shapes = candidate.shapes[candidate.leading :]
    texts = [f"`polymorphic_shapes={shapes[0]!r}`" if len(shapes) == 1 else f"`polymorphic_shapes={shapes!r}`"]
    if candidate.constraints != signature.constraints:
        texts.append(f"`polymorphic_constraints={candidate.constraints!r}`")
    return ", ".join(texts)
