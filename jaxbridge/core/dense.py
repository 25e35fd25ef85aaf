"""Whether JAX can take a value as an array: what to write for the kinds that it cannot."""

from __future__ import annotations

from typing import Any

#: Classes of TensorFlow and scipy that hold arrays and are none, by the name of class and library.
_DENSE_OF = {
    ("RaggedTensor", "tensorflow"): "`x.to_tensor()`, with the lengths as a mask",
    ("SparseTensor", "tensorflow"): "`tf.sparse.to_dense(x)`",
    ("IndexedSlices", "tensorflow"): "`tf.convert_to_tensor(x)`",
}
_SPARSE_OF_JAX = ("jax.experimental.sparse", "`x.todense()`")
_TEXTS = "numbers: look texts up first, in a `keras.layers.StringLookup` or `TextVectorization` before it"
_OBJECTS = "an array of numbers: `np.asarray(x, 'float32')`; rows of different lengths must be padded"
_TIMES = "numbers: `x.astype('int64')` for times, after it was brought to one unit"
_KINDS = {"S": _TEXTS, "U": _TEXTS, "T": _TEXTS, "O": _OBJECTS, "M": _TIMES, "m": _TIMES}


def refusal(value: Any, takes_sparse: bool = False) -> str | None:
    """Returns what a value is and what to pass instead, for messages; None where JAX takes it, or it is no array at all.

    Args:
        value: anything.
        takes_sparse: whether sparse arrays of JAX (BCOO) are taken as they are.
    """
    instead = _instead_of(value, takes_sparse)
    if instead is None:
        return None
    dtype = f" of dtype {getattr(value.dtype, 'name', value.dtype)}" if hasattr(value, "dtype") else ""
    return f"a {type(value).__name__}{dtype}, and JAX takes dense arrays of numbers. Pass {instead}."


def _instead_of(value: Any, takes_sparse: bool) -> str | None:
    """Returns what to pass instead of a value that is no dense array of numbers."""
    cls = type(value)
    library = cls.__module__
    if not takes_sparse and library.startswith(_SPARSE_OF_JAX[0]):
        return _SPARSE_OF_JAX[1]
    dense = _DENSE_OF.get((cls.__name__, library.partition(".")[0]))
    if dense is not None:
        return dense
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return None
    if getattr(dtype, "name", dtype) == "string":
        return _TEXTS
    # Extended dtypes of numpy, such as bfloat16, are of the kind "V", as structured ones are.
    return "one array per field" if getattr(dtype, "fields", None) else _KINDS.get(getattr(dtype, "kind", ""))
