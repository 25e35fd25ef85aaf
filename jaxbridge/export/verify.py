"""Comparing what was exported with the model it was made of."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from jaxbridge import backends
from jaxbridge.core.shapes import TRIAL_SIZES, Signature
from jaxbridge.core.specs import without_warnings
from jaxbridge.errors import ExportError
from jaxbridge.export.endpoint import Endpoint, host_array, parts_of
from jaxbridge.export.given_inputs import as_arrays
from jaxbridge.export.serving import serve_without_jax

#: Relative to the largest value of an output. Where anything is computed in half precision, also if the output is float32 in
#: the end, some ten roundings: float16 has 11 significant bits, bfloat16 has 8. Float32 sums in another order differ by some
#: 1e-6.
_TOLERANCES = {"bfloat16": 10 * 2.0**-8, "float16": 10 * 2.0**-11}
_TOLERANCE = 1e-4

#: Sizes tried for unknown dimensions other than the batch, in order.
_SIZES = tuple(size for size in (8, 16, 32, 64, 128, 224, 256, 4, 2, 1) if size in TRIAL_SIZES)


@dataclasses.dataclass(frozen=True)
class Verification:
    """How a SavedModel was compared with its model.

    Attributes:
        input_shapes: the shapes of the inputs of each call.
        max_difference: the largest absolute difference of any output.
        with_nan: whether one more call, with a NaN and an infinity among its inputs, gave the same; False where inputs were
            given, hold no floats or do not suit the model, and for `nan="fast"`.
        tensorflow: the version of TensorFlow that served it: the installed one, whatever it was written for.
    """

    input_shapes: tuple[tuple[tuple[int, ...], ...], ...]
    max_difference: float
    with_nan: bool
    tensorflow: str


def compare_served(
    endpoint: Endpoint, directory: Path, signature: str, given: Sequence[Any] | None = None, keeps_nan: bool = True
) -> Verification:
    """Serves a SavedModel without JAX and compares it with the model, state and draws going on from call to call.

    Made-up inputs are ordinary numbers, since NaN hides other differences; the last call has a NaN and an infinity in two of
    its rows, where `keeps_nan`.

    Raises:
        ExportError: it cannot be served, or an output differs by more than rounding.
    """
    cases, expected, with_nan = _cases(endpoint, given, keeps_nan)
    served = serve_without_jax(
        directory, [dict(zip(endpoint.names, case, strict=True)) for case in cases], signature=signature
    )
    largest, tolerance = 0.0, _tolerance(endpoint)
    for number, (case, wanted, outputs) in enumerate(zip(cases, expected, served, strict=True), 1):
        shapes, has_nan = [array.shape for array in case], with_nan and number == len(cases)
        for name, value in wanted.items():
            have = outputs[name]
            if has_nan:
                have = _without_more_nan(name, value, have)
            largest = max(largest, _difference(name, value, have, shapes, tolerance, has_nan))
    import tensorflow as tf

    input_shapes = tuple(tuple(tuple(array.shape) for array in case) for case in cases[: len(cases) - with_nan])
    return Verification(input_shapes, largest, with_nan, tf.__version__)


def runs_on_made_up_inputs(endpoint: Endpoint) -> bool:
    """Returns whether the model itself runs, at some sizes."""
    try:
        _cases(endpoint, None, False)
    except ExportError:
        return False
    return True


def _cases(
    endpoint: Endpoint, given: Sequence[Any] | None, keeps_nan: bool
) -> tuple[list[list[np.ndarray]], list[dict[str, Any]], bool]:
    """Returns inputs of calls, what the model gives for them, and whether the last ones hold a NaN."""
    if given is not None:
        cases = [as_arrays(endpoint, number, inputs) for number, inputs in enumerate(given)]
        return cases, list(map(_model_calls(endpoint), cases)), False
    failures: list[Exception] = []
    for cases in _made_up(endpoint):
        call = _model_calls(endpoint)
        try:
            expected = list(map(call, cases))
        except Exception as error:  # whatever the model raises at sizes that do not suit it
            failures.append(error)
            continue
        if keeps_nan and any(map(_has_floats, cases[-1])):
            with contextlib.suppress(Exception):  # a model that refuses NaN
                case = list(map(_with_nan, cases[-1]))
                return [*cases, case], [*expected, call(case)], True
        return cases, expected, False
    raise ExportError(
        f"The model failed on every made-up input; pass `verification_inputs`. The first error: {failures[0]}"
    ) from failures[0]


def _made_up(endpoint: Endpoint) -> Iterator[list[list[np.ndarray]]]:
    """Yields pairs of inputs at two batch sizes (and two of every other unknown size), the small ones first."""
    signature = endpoint.signature
    symbols = signature.symbols()
    batches = {shape.split(",")[0].strip("( ") for shape in signature.shapes}
    if not symbols:
        yield [_random_inputs(signature, endpoint.dtypes)]
        return
    for first, second in zip(_SIZES, (*_SIZES[1:], 3), strict=True):
        pair = [
            signature.evaluated({name: batch if name in batches else size for name in symbols})
            for batch, size in ((2, first), (3, second if len(symbols) > len(batches & set(symbols)) else first))
        ]
        concrete = [signature for signature in pair if signature is not None]
        if concrete:
            yield [_random_inputs(signature, endpoint.dtypes) for signature in concrete]


def _random_inputs(signature: Signature, dtypes: Sequence[str]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    arrays = []
    for struct, dtype in zip(signature.structs(), dtypes, strict=True):
        shape = tuple(struct.shape)
        if dtype == "string":
            arrays.append(random.choice(np.array(["a", "the", "42", ""]), shape))
        elif np.dtype(struct.dtype).kind in "iub":
            # Integers may be indices into tables of any size, so that only 0 and 1 are safe.
            arrays.append(random.integers(0, 2, shape).astype(struct.dtype))
        else:
            arrays.append(random.normal(size=shape).astype(struct.dtype))
    return arrays


def _has_floats(array: np.ndarray) -> bool:
    return jax.numpy.issubdtype(array.dtype, jax.numpy.floating) and array.size > 0


def _with_nan(array: np.ndarray) -> np.ndarray:
    """Returns an array of floats with a NaN in the middle of its last row and an infinity in the row before."""
    if not _has_floats(array):
        return array
    array = array.copy()
    rows = array.reshape(array.shape[0] if array.ndim else 1, -1)
    middle = rows.shape[1] // 2
    rows[-1, middle] = np.nan
    if len(rows) > 1:
        rows[-2, middle] = np.inf
    return array


def _tolerance(endpoint: Endpoint) -> float:
    """Returns what outputs may differ by, relative to their largest value: that of the coarsest dtype in use."""
    layers = [part for part in parts_of(endpoint.model) if isinstance(part, keras.layers.Layer)]
    dtypes = {dtype for layer in layers for dtype in (layer.compute_dtype, layer.variable_dtype)} | {*endpoint.dtypes}
    return max(_TOLERANCES.get(dtype, _TOLERANCE) for dtype in dtypes)


def _model_calls(endpoint: Endpoint) -> Callable[[Sequence[np.ndarray]], dict[str, Any]]:
    """Returns a function that calls the model and returns its outputs, state going on from call to call."""
    values = [keras.ops.copy(variable.value) for variable in endpoint.variables]

    def named(values: list[Any], tensors: list[Any]) -> tuple[dict[str, Any], dict[int, Any]]:
        outputs, state = endpoint.call(values, tensors)
        return endpoint.named_outputs(outputs), state

    # Op by op half precision is rounded at more places than where the compiler fuses ops, as it does in what is served.
    run = backends.current().compiled(named)

    @without_warnings()  # the batch sizes are nobody's
    def call(case: Sequence[np.ndarray]) -> dict[str, Any]:
        tensors = [
            keras.ops.convert_to_tensor(array, dtype=dtype) for array, dtype in zip(case, endpoint.dtypes, strict=True)
        ]
        outputs, state = run(values, tensors)
        for index, value in state.items():
            values[index] = value
        return outputs

    return call


def _as_served(wanted: Any) -> np.ndarray:
    """Returns an output of the model as the array that the process that serves hands over."""
    dtype, array = keras.backend.standardize_dtype(wanted.dtype), host_array(wanted)
    return array.astype(np.float32 if dtype == "bfloat16" else bytes) if dtype in ("bfloat16", "string") else array


def _without_more_nan(name: str, wanted: Any, have: np.ndarray) -> np.ndarray:
    """Returns a served output with the model's values, which a warning names, where it alone is NaN.

    No error: JAX's own compiler loses a NaN in long reductions on CPU (0.10 to 0.12: from 4096 elements of the last axis on).
    """
    expected = _as_served(wanted)
    if expected.dtype.kind != "f" or expected.shape != have.shape:
        return have
    more = np.isnan(have) & ~np.isnan(expected)
    if not more.any():
        return have
    warnings.warn(
        f"For an input with a NaN and an infinity the SavedModel gives NaN in {np.count_nonzero(more)} of {more.size} values "
        f"of output '{name}' where the model does not. JAX on CPU loses a NaN in reductions over thousands of elements; if the "
        "model leaves out NaN on purpose, compare on inputs of your own (`verification_inputs`).",
        stacklevel=4,
    )
    return np.where(more, expected, have)


def _difference(
    name: str, wanted: Any, have: np.ndarray, shapes: list[tuple[int, ...]], tolerance: float, has_nan: bool = False
) -> float:
    dtype, expected = keras.backend.standardize_dtype(wanted.dtype), _as_served(wanted)
    if expected.shape != have.shape:
        raise ExportError(
            f"The SavedModel gives output '{name}' of shape {have.shape} where the model gives {expected.shape}, for inputs of "
            f"shapes {shapes}."
        )
    if expected.dtype.kind in "iubSU":
        differs, difference = not np.array_equal(expected, have), float(np.count_nonzero(expected != have))
    else:
        finite = np.isfinite(expected)
        gap = np.abs(np.where(finite, expected, 0) - np.where(np.isfinite(have), have, 0))
        difference = float(gap.max(initial=0))
        scale = float(np.abs(expected[finite]).max(initial=0)) if expected.size else 0.0
        same_kind = np.array_equal(finite, np.isfinite(have)) and np.array_equal(
            expected[~finite], have[~finite], equal_nan=True
        )
        differs = not same_kind or difference > max(tolerance, _TOLERANCES.get(dtype, 0.0)) * max(1.0, scale)
    if differs:
        raise ExportError(
            f"The SavedModel does not give what the model gives: output '{name}' differs by up to {difference:.3g} for "
            f"inputs of shapes {shapes}{' that hold a NaN and an infinity' if has_nan else ''}. Nothing was written. If the "
            "inputs do not suit the model, pass `verification_inputs`; `verify=False` writes it all the same, not compared."
        )
    return difference
