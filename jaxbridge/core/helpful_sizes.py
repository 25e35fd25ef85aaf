"""What to say of sizes so that a function that cannot be traced for unknown ones can be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from jaxbridge.core import dims
from jaxbridge.core.shapes import Signature

#: Strides of convolutions and pools, and their products.
_FACTORS = (2, 4, 8, 16, 32)

#: How many declarations are tried: each is a trace.
_TRIED = 24


def advice(error: BaseException, signature: Signature, works: Callable[[Signature], bool]) -> str | None:
    """Returns a sentence that says what to write about sizes; None where that is not what the function fails for.

    Args:
        error: what was raised for the sizes of the signature.
        signature: the signature.
        works: traces the function with another signature.
    """
    for candidate in itertools.islice(_candidates(str(error), signature), _TRIED):
        if works(candidate):
            return f"It can for {_written(candidate, signature)}."
    if not any(map(works, signature.trials())):
        return None
    return (
        "Give the sizes (`keras.Input` with numbers and `batch_size=`), or say what is known of them: "
        f"`polymorphic_shapes={declaration(signature)}` with sizes such as `2*k` in it, and `polymorphic_constraints=` "
        "such as ('k >= 2',) between its names."
    )


def declaration(signature: Signature) -> str:
    """Returns the shapes of a signature as source text for `polymorphic_shapes`."""
    shapes = signature.shapes[signature.leading :]
    return repr(shapes[0] if len(shapes) == 1 else list(shapes))


def _candidates(text: str, signature: Signature) -> Iterator[Signature]:
    """Yields signatures that an error speaks for: JAX quotes the sizes that it cannot compare."""
    compared = re.search(r"comparison '([^']+)' (<=|<|>=|>) '([^']+)' is inconclusive", text)
    if compared is not None:
        left, sign, right = compared.groups()
        decided = (f"{left} >= {right}", f"{left} <= {right} - 1")
        if sign in (">", "<="):
            decided = (f"{left} >= {right} + 1", f"{left} <= {right}")
        for constraint in decided:
            yield signature.with_constraints(_shortened(constraint))
    named = [name for name in signature.symbols() if re.search(rf"\b{name}\b", text)]
    symbols = sorted(named or signature.symbols(), key=lambda name: name in signature.batches())
    numbers = dict.fromkeys(n for n in map(int, re.findall(r"(?<![\w.])\d{1,5}\b", text)) if n > 1)
    bounds = tuple(numbers)[:3]
    for name in symbols:
        for bound in (f"{name} >= 2", *(f"{name} {sign} {n}" for n in bounds for sign in ("<=", ">="))):
            yield signature.with_constraints(bound)
    behind = [name for name in signature.symbols() if name not in signature.batches()]
    for factor in dict.fromkeys((*_FACTORS, *bounds)):
        if behind:
            yield signature.with_sizes({name: f"{factor}*{name}" for name in behind})


def _shortened(constraint: str) -> str:
    """Returns a constraint with the numbers of its right side added up."""
    left, sign, right = dims.split_constraint(constraint)
    return constraint if dims.symbols_in(right) else f"{left} {sign} {dims.evaluate(right, {})}"


def _written(candidate: Signature, signature: Signature) -> str:
    texts = []
    if candidate.shapes != signature.shapes:
        texts.append(f"`polymorphic_shapes={declaration(candidate)}`")
    if candidate.constraints != signature.constraints:
        texts.append(f"`polymorphic_constraints={candidate.constraints!r}`")
    return ", ".join(texts)
