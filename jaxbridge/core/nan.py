"""What becomes of NaN in maxima and minima where TensorFlow compiles them."""

from __future__ import annotations

from jaxbridge.errors import ConversionError

#: "keep": NaN where an operand is, as in JAX and numpy; "fast": as TensorFlow's compiler has it, which may drop it.
NAN = ("keep", "fast")


def checked_nan(nan: str) -> str:
    """Returns the argument `nan` of conversions, layers and exports.

    Raises:
        ConversionError: it is none of `NAN`.
    """
    if nan not in NAN:
        raise ConversionError(
            f"`nan` must be 'keep' (maxima and minima are NaN where an operand is) or 'fast' (on CPU they may drop it), got "
            f"{nan!r}."
        )
    return nan
