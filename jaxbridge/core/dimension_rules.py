"""What each operation of JAX does with the dimensions of its operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from jaxbridge.core.dimensions import Dimensions, Value, nbytes, reshape_groups

Rule = Callable[[Dimensions, Any, list[Value]], list[Value]]
#: What is done with an operation, by its name: `rule(dims, equation, args) -> results`.
RULES: dict[str, Rule] = {}

#: Operations whose result has the shape of the operand, and mixes its elements.
_MIXING = frozenset({"fft", "cholesky", "triangular_solve", "lu", "eigh", "householder_product", "custom_linear_solve"})


def is_elementwise(equation: Any) -> bool:
    """Returns whether all shapes of an operation are one, but for scalars and sizes of 1, which are repeated."""
    out = {_shape(var) for var in equation.outvars}
    if len(out) != 1 or equation.primitive.name in _MIXING:
        return False
    (shape,) = out
    return all(
        len(each) == len(shape) and all(size in (1, whole) for size, whole in zip(each, shape, strict=True))
        for var in equation.invars
        if (each := _shape(var))
    )


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def made_of(args: Iterable[Value], dims: Iterable[int]) -> Value:
    """Returns a value with these dimensions, computed from `args`."""
    args = list(args)
    from_inputs = any(arg.from_inputs for arg in args)
    params = frozenset() if from_inputs else frozenset[int]().union(*(arg.params for arg in args))
    return Value(tuple(dims), params, from_inputs, any(arg.trained for arg in args))


def _shape(var: Any) -> tuple[int, ...]:
    return var.aval.shape


def elementwise(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    out = equation.outvars[0].aval
    new = [dims.new(size) for size in out.shape]
    for var, arg in zip(equation.invars, args, strict=True):
        for position, dim in enumerate(arg.dims):
            if _shape(var)[position] == out.shape[position]:
                dims.join(new[position], dim)
    result = made_of(args, new)
    if result.from_inputs:
        for arg in args:
            dims.read(arg, "kept", (), nbytes(out))
    return [result] * len(equation.outvars)


def opaque(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    """An operation that is not known: devices exchange what it reads and writes."""
    results = [made_of(args, dims.fresh(var.aval).dims) for var in equation.outvars]
    for var, value in [*zip(equation.invars, args, strict=True), *zip(equation.outvars, results, strict=True)]:
        for dim in value.dims:
            dims.exchange(dim, 2 * nbytes(var.aval), f"`{equation.primitive.name}` needs it whole")
    return results


def _partly(dims: Dimensions, equation: Any, arg: Value, position: int) -> list[Value]:
    """An operation that leaves dimensions as they are, but for one, which it needs whole."""
    out = equation.outvars[0].aval
    new = list(arg.dims)
    dims.exchange(arg.dims[position], 2 * nbytes(out), f"`{equation.primitive.name}` needs it whole")
    new[position] = dims.new(out.shape[position])
    return [dataclasses.replace(arg, dims=tuple(new))] * len(equation.outvars)


@rule("dot_general")
def _dot_general(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    lhs, rhs = args
    (lhs_summed, rhs_summed), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    out = nbytes(equation.outvars[0].aval)
    sizes = [nbytes(var.aval) for var in equation.invars]
    batch = [dims.join(lhs.dims[a], rhs.dims[b]) for a, b in zip(lhs_batch, rhs_batch, strict=True)]
    summed = [dims.join(lhs.dims[a], rhs.dims[b]) for a, b in zip(lhs_summed, rhs_summed, strict=True)]
    kept = [
        [dim for position, dim in enumerate(arg.dims) if position not in (*used, *each)]
        for arg, used, each in ((lhs, lhs_summed, lhs_batch), (rhs, rhs_summed, rhs_batch))
    ]
    if lhs.from_inputs and rhs.from_inputs:
        dims.heads(batch)
        dims.block(summed, "two activations are multiplied and summed over it")
    for dim in summed:
        dims.exchange(dim, out, "a matrix product sums over it")
    for own, other, size in ((0, rhs, sizes[1]), (1, lhs, sizes[0])):
        if other.trained:
            for dim in kept[own]:
                dims.exchange(dim, size, "the gradient of a matrix product sums over it")
    for own, arg in enumerate(args):
        traffic = sizes[1 - own] + out
        dims.read(arg, "kept", kept[own], traffic)
        dims.read(arg, "summed", summed, 0)
    return [made_of(args, (*batch, *kept[0], *kept[1]))]


@rule("conv_general_dilated")
def _convolution(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    params = equation.params
    numbers = params["dimension_numbers"]
    lhs, rhs = args
    lhs_var = equation.invars[0]
    out_aval = equation.outvars[0].aval
    out: list[int] = [dims.new(size) for size in out_aval.shape]
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return opaque(dims, equation, args)
    batch, features, *_slid = numbers.lhs_spec
    kernel_out, kernel_in, *window = numbers.rhs_spec
    dims.join(lhs.dims[features], rhs.dims[kernel_in])
    dims.exchange(rhs.dims[kernel_in], nbytes(out_aval), "a convolution sums over it")
    if lhs.trained:
        dims.exchange(rhs.dims[kernel_out], nbytes(lhs_var.aval), "the gradient of a convolution sums over it")
    out[numbers.out_spec[0]], out[numbers.out_spec[1]] = lhs.dims[batch], rhs.dims[kernel_out]
    for position in numbers.lhs_spec[2:]:
        dims.exchange(lhs.dims[position], 2 * nbytes(lhs_var.aval), "a convolution slides along it")
    dims.block((rhs.dims[position] for position in window), "it is the window of a convolution")
    dims.read(rhs, "kept", [rhs.dims[kernel_out]], nbytes(lhs_var.aval) + nbytes(out_aval))
    dims.read(rhs, "summed", [rhs.dims[kernel_in]], 0)
    return [made_of(args, out)]


@rule("gather")
def _gather(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    operand, indices = args[:2]
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, out = _shape(equation.invars[0]), equation.outvars[0].aval
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = iter([position for position in range(len(shape)) if position not in gone])
    for a, b in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        dims.join(indices.dims[b], operand.dims[a])
    batch = iter(indices.dims[:-1])
    new = []
    for position, size in enumerate(out.shape):
        if position not in numbers.offset_dims:
            new.append(next(batch))
            continue
        source = next(windows)
        new.append(operand.dims[source] if sizes[source] == shape[source] else dims.new(size))
    looked_up = [operand.dims[position] for position in numbers.start_index_map if sizes[position] != shape[position]]
    for dim in looked_up:
        dims.exchange(dim, nbytes(out), "a lookup takes rows of it")
    dims.read(operand, "looked up", looked_up, nbytes(out) + nbytes(equation.invars[1].aval))
    dims.read(operand, "kept", (dim for dim in operand.dims if dim in new), 0)
    return [made_of(args, new)]


@rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
def _scatter(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    operand, _, updates = args[:3]
    numbers = equation.params["dimension_numbers"]
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [position for position in range(len(operand.dims)) if position not in gone]
    shapes = _shape(equation.invars[0]), _shape(equation.invars[2])
    for position, source in zip(windows, numbers.update_window_dims, strict=True):
        if shapes[0][position] == shapes[1][source]:
            dims.join(operand.dims[position], updates.dims[source])
    for position in numbers.scatter_dims_to_operand_dims:
        dims.exchange(operand.dims[position], 2 * nbytes(equation.invars[2].aval), "updates are scattered along it")
    return [made_of(args, operand.dims)]


@rule("reshape")
def _reshape(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    before, out = _shape(equation.invars[0]), equation.outvars[0].aval
    new = [dims.new(size) for size in out.shape]
    for taken, made in reshape_groups(before, out.shape) if nbytes(out) else ():
        first = args[0].dims[taken[0]]
        if len(taken) == 1 or len(made) == 1:
            # The parts of the whole are those of its slowest factor, as long as they do not cut it up.
            new[made[0]] = first
            dims.must_divide(first, before[taken[0]])
            dims.must_divide(first, out.shape[made[0]])
            lost = taken[1:]
        else:
            lost = taken
        for position in lost:
            dims.exchange(args[0].dims[position], 2 * nbytes(out), "a reshape merges it into another")
        for position in made[1:] if len(taken) == 1 else ():
            dims.exchange(new[position], 2 * nbytes(out), "a reshape takes it out of another")
    return [dataclasses.replace(args[0], dims=tuple(new))]


@rule("transpose")
def _transpose(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    return [dataclasses.replace(args[0], dims=tuple(args[0].dims[i] for i in equation.params["permutation"]))]


@rule("squeeze")
def _squeeze(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    gone = equation.params["dimensions"]
    return [dataclasses.replace(args[0], dims=tuple(d for i, d in enumerate(args[0].dims) if i not in gone))]


@rule("broadcast_in_dim")
def _broadcast(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    out = equation.outvars[0].aval
    new = [dims.new(size) for size in out.shape]
    for position, target in enumerate(equation.params["broadcast_dimensions"]):
        if _shape(equation.invars[0])[position] == out.shape[target]:
            new[target] = args[0].dims[position]
    return [dataclasses.replace(args[0], dims=tuple(new))]


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin")
def _reduce(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    axes = equation.params["axes"]
    for position in axes:
        dims.exchange(
            args[0].dims[position], nbytes(equation.outvars[0].aval), f"`{equation.primitive.name}` runs over it"
        )
    return [made_of(args, (dim for position, dim in enumerate(args[0].dims) if position not in axes))]


@rule("slice", "dynamic_slice", "pad", "rev", "reduce_window_max", "reduce_window_sum", "reduce_window_min", "split")
def _resized(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    """Operations that leave the dimensions as they are whose size stays the same."""
    before, after = _shape(equation.invars[0]), [_shape(var) for var in equation.outvars]
    reversed_ = equation.params.get("dimensions", ()) if equation.primitive.name == "rev" else ()
    whole = [i for i, size in enumerate(before) if i in reversed_ or any(shape[i] != size for shape in after)]
    results = []
    for var in equation.outvars:
        new = [dims.new(var.aval.shape[i]) if i in whole else dim for i, dim in enumerate(args[0].dims)]
        for position in whole:
            for dim in (args[0].dims[position], new[position]):
                dims.exchange(dim, nbytes(var.aval), f"`{equation.primitive.name}` cuts it up")
        results.append(made_of(args, new))
    return results


@rule("concatenate")
def _concatenate(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    axis, out = equation.params["dimension"], equation.outvars[0].aval
    new = list(args[0].dims)
    new[axis] = dims.new(out.shape[axis])
    for arg in args:
        for position, dim in enumerate(arg.dims):
            if position != axis:
                dims.join(new[position], dim)
            else:
                dims.exchange(dim, 2 * nbytes(out), "it is concatenated")
    dims.exchange(new[axis], 2 * nbytes(out), "it is concatenated")
    return [made_of(args, new)]


@rule("dynamic_update_slice")
def _update(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    operand, update = args[:2]
    for position, (first, second) in enumerate(zip(operand.dims, update.dims, strict=True)):
        if _shape(equation.invars[0])[position] == _shape(equation.invars[1])[position]:
            dims.join(first, second)
        else:
            dims.exchange(first, 2 * nbytes(equation.invars[1].aval), "a part of it is written")
    return [made_of(args, operand.dims)]


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    return _partly(dims, equation, args[0], equation.params["axis"])


@rule("top_k")
def _top_k(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    return _partly(dims, equation, args[0], len(args[0].dims) - 1)


@rule("sort")
def _sort(dims: Dimensions, equation: Any, args: list[Value]) -> list[Value]:
    joined = elementwise(dims, equation, args)[0]
    return _partly(dims, equation, joined, equation.params["dimension"])
