"""What sorting answers: order, largest elements, medians and quantiles, most frequent values, bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import NOT_OFFERED, RANK, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.known import known_number, values_of
from minigraph.types import FLOATS, INTS, as_dtype, float32, float64, normalize_axes, normalize_axis

from .arguments import as_type, emit, ints, output_prefix, scalars_as_rows, variable
from .functions import floor, isnan, log
from .indexing.picking import take_along_axis
from .logic import greater_equal, less_equal, logical_and, where
from .manipulation import concat, flatten, squeeze, stack, transpose, unsqueeze
from .math import argmax, cast, cumsum
from .math import max as largest_of
from .math import min as smallest_of
from .pieces import slice
from .statistics import any
from .waiting.calls import waiting


@scalars_as_rows
def sort(x: Variable, axis: int = -1, descending: bool = False, name: str | None = None) -> Variable:
    """x with its elements along `axis` in order; NaN is the largest number."""
    return emit("sort", "argsort", variable(x, "sort"), axis=axis, descending=descending, name=name)[0]


@scalars_as_rows
def argsort(x: Variable, axis: int = -1, descending: bool = False, name: str | None = None) -> Variable:
    """Where the elements of sort(x) are in x, int64; equal ones keep their order."""
    return emit("argsort", "argsort", variable(x, "argsort"), axis=axis, descending=descending, name=name)[1]


@scalars_as_rows
@whole
def topk(
    x: Variable, k: int, axis: int | None = -1, largest: bool = True, sorted: bool = True, name: str | None = None
) -> tuple[Variable, Variable]:  # fmt: skip
    """The k largest (or smallest) elements along `axis` (the last one), in order, and where they are, int64.

    Of equal ones the first come first. They are in order with sorted=False, too.
    """
    x = variable(x, "topk")
    axis = normalize_axis(-1 if axis is None else axis, x.ndim)
    k = known_number(k)
    _check_k(k, x, axis)
    pair = emit("topk", "argsort", x, axis=axis, descending=largest, name=name)
    values, indices = (slice(v, [axis], [0], [k]) for v in pair)
    return values, indices


def _check_k(k: Any, x: Variable, axis: int) -> None:
    require(isinstance(k, int), f"k must be an int, is {k!r}", AttrError)
    require(k >= 1 and x.shape[axis] in (-1, *range(k, max(k, x.shape[axis]) + 1)),
            f"k {k} is not in [1, {x.shape[axis]}], the size of axis {axis}", AttrError)  # fmt: skip


@scalars_as_rows
@whole
def kthvalue(
    x: Variable, k: int, axis: int | None = -1, keepdim: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:  # fmt: skip
    """The k-th smallest element along `axis` (the last one), counted from 1, and where it is, int64."""
    x = variable(x, "kthvalue")
    axis = normalize_axis(-1 if axis is None else axis, x.ndim)
    k = known_number(k)
    _check_k(k, x, axis)
    pair = emit("kthvalue", "argsort", x, axis=axis, name=name)
    values, indices = (_at(v, axis, k - 1, keepdim) for v in pair)
    return values, indices


def _at(x: Variable, axis: int, place: int, keepdim: bool) -> Variable:
    piece = slice(x, [axis], [place], [place + 1])
    return piece if keepdim else squeeze(piece, axis)


@scalars_as_rows
@whole
def mode(
    x: Variable, axis: int = -1, keepdim: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:  # fmt: skip
    """The most frequent element along `axis`, the smallest of several, and the last place where it is, int64."""
    x = variable(x, "mode")
    axis, last, g = normalize_axis(axis, x.ndim), x.ndim - 1, builder_of(x)
    order = [*(a for a in range(x.ndim) if a != axis), axis]
    values, indices = g.argsort(g.transpose(x, perm=order) if axis != last else x)
    ends = g.searchsorted(values, values, right=True)
    best = argmax(g.elementwise_sub(ends, g.searchsorted(values, values)), last, keepdim=True)
    end = g.scale(take_along_axis(ends, best, last, broadcast=False), bias=-1.0)
    pair = [take_along_axis(v, end, last, broadcast=False) for v in (values, indices)]
    if not keepdim:
        pair = [squeeze(v, last) for v in pair]
    elif axis != last:
        pair = [g.transpose(v, perm=[order.index(a) for a in range(x.ndim)]) for v in pair]
    return pair[0], pair[1]


@whole
def median(x: Variable, axis: int | None = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The middle element over `axis` (None: of all), the mean of the two middle ones; NaN where one is NaN.

    Ints become float32. The size must be known.
    """
    x = variable(x, "median")
    x = x if x.dtype in FLOATS else as_type(x, float32)
    return _quantiles(x, [0.5], axis, keepdim, "median", name)[0]


@whole
def quantile(x: Variable, q: Any, axis: int | Sequence[int] | None = None, keepdim: bool = False) -> Variable:
    """What the fraction q of the elements over `axis` (None: of all) lies below, between two of them in proportion.

    q     a number in [0, 1], or a list, whose answers lie along a new first axis
    axis  also a list of axes, whose elements count together
    The result is float64, NaN where an element is NaN. The size must be known.
    """
    x = variable(x, "quantile")
    if axis is not None and not isinstance(axis, int):
        return _quantile_of_axes(x, q, sorted({normalize_axis(a, x.ndim) for a in axis}), keepdim)
    fractions = list(q) if isinstance(q, (list, tuple)) else [q]
    found = _quantiles(cast(x, float64), fractions, axis, keepdim, "quantile", None)
    return stack(found, axis=0) if isinstance(q, (list, tuple)) else found[0]


def _quantile_of_axes(x: Variable, q: Any, axes: list[int], keepdim: bool) -> Variable:
    others = [a for a in range(x.ndim) if a not in axes]
    found = quantile(flatten(transpose(x, [*others, *axes]), len(others)), q, -1)
    first = 1 if isinstance(q, (list, tuple)) else 0
    return unsqueeze(found, [first + a for a in axes]) if keepdim else found


def _quantiles(
    x: Variable, fractions: list[float], axis: int | None, keepdim: bool, call: str, name: str | None
) -> list[Variable]:  # fmt: skip
    ndim = x.ndim
    x, at = (flatten(x), 0) if axis is None else (x, normalize_axis(axis, x.ndim))
    size, g = x.shape[at], builder_of(x)
    require(size > 0, f"{call} needs to know the size of axis {at}, and at least one element, x is {x}", UNKNOWN_SIZE)
    values, found = sort(x, at), []
    nothing = any(isnan(x), at, keepdim=True)
    for q in fractions:
        require(isinstance(q, (int, float)) and 0 <= q <= 1, f"q must lie in [0, 1], is {q!r}", AttrError)
        place = q * (size - 1)
        low, high = (_at(values, at, i, True) for i in (math.floor(place), math.ceil(place)))
        between = low if place == math.floor(place) else low + (high - low) * (place - math.floor(place))
        out = where(nothing, math.nan, between)
        axes = list(range(ndim)) if axis is None else [at]
        if axis is None:
            out = g.reshape(out, shape=[1] * ndim if keepdim else [])
        elif not keepdim:
            out = squeeze(out, axes)
        found.append(g.assign(out, name=output_prefix(call, name)))
    return found


@whole
def searchsorted(
    sorted_sequence: Variable, values: Variable, out_int32: bool = False, right: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """How many elements of a sorted row lie before each of `values`, with `right` or are equal to it.

    sorted_sequence  of rank 1, or with the sizes of `values` but for the last one
    """
    rows, x = variable(sorted_sequence, "searchsorted", "sorted_sequence"), variable(values, "searchsorted", "values")
    found = builder_of(x).searchsorted(rows, x, right=right)
    return cast(found, "int32" if out_int32 else "int64", name=name)


def bucketize(
    x: Variable, sorted_sequence: Variable, out_int32: bool = False, right: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """searchsorted for borders of rank 1."""
    borders = variable(sorted_sequence, "bucketize", "sorted_sequence")
    require(borders.ndim == 1, f"sorted_sequence must have rank 1, is {borders}", RANK)
    return searchsorted(borders, x, out_int32, right, name)


@whole
def histogram(input: Variable, bins: int = 100, min: float = 0, max: float = 0, name: str | None = None) -> Variable:
    """How many elements lie in each of `bins` equal parts of [min, max], int64; what lies outside does not count.

    With min = max = 0 from the smallest to the largest element.
    """
    x = cast(flatten(variable(input, "histogram", "input")), float64)
    require(bins >= 1 and min <= max, f"bins {bins} is below 1, or min {min} is above max {max}", AttrError)
    g = builder_of(x)
    low = smallest_of(x) if min == max == 0 else g.fill_constant(shape=(), value=float(min), dtype=float64)
    high = largest_of(x) if min == max == 0 else g.fill_constant(shape=(), value=float(max), dtype=float64)
    same = g.cast(g.equal(low, high), dtype=float64)
    low, high = low - same, high + same
    place = floor((x - low) * float(bins) / (high - low))
    place = g.clip(cast(place, "int64"), min=0.0, max=float(bins - 1))
    inside = logical_and(greater_equal(x, low), less_equal(x, high))
    place = where(inside, place, bins)
    counts = g.gather_grad(
        g.fill_constant(shape=(bins + 1,), value=0, dtype="int64"), place, g.fill_any_like(place, value=1), axis=0
    )
    return slice(counts, [0], [0], [bins])


@whole
def bincount(x: Variable, weights: Variable | None = None, minlength: int = 0, name: str | None = None) -> Variable:
    """How often 0, 1, ..., minlength - 1 occur in a vector of ints, int64; or the sums of `weights` for each, floats.

    minlength  elements of the result: larger ints in x are a KernelError. Where it is 0 the largest int decides in each
               run; and where x comes from constants, if that is larger
    """
    x = variable(x, "bincount")
    require(x.ndim == 1 and x.dtype in INTS, f"x must be a vector of ints, is {x}", RANK)
    if (values := values_of(x)) is not None:
        minlength = max(minlength, int(values.max(initial=-1)) + 1)
    size = minlength or largest_of(cast(x, "int64")) + 1
    return counts(x, weights, size, name)


@waiting("size")
def counts(x: Variable, weights: Variable | None, size: int, name: str | None = None) -> Variable:
    """bincount for 0, ..., size - 1."""
    g = builder_of(x)
    values = g.fill_any_like(x, value=1, dtype="int64") if weights is None else variable(weights, "bincount", "weights")
    values = as_type(values, float64) if weights is not None and values.dtype not in FLOATS else values
    zeros = g.fill_constant(shape=(size,), value=0, dtype=values.dtype)
    inside = g.where(x >= 0, x, g.fill_any_like(x, value=size))  # else they would count from the back
    return g.gather_grad(zeros, inside, values, axis=0, name=output_prefix("bincount", name))


@whole
def _numbers_quantiles(
    x: Variable, fractions: list[float], axis: Any, keepdim: bool, call: str, name: str | None
) -> list[Variable]:  # fmt: skip
    """Quantiles of what is not NaN over `axis`, an int, several ones or None; NaN where there is nothing else."""
    g, ndim = builder_of(x), x.ndim
    axes = normalize_axes(None if axis is None else tuple(ints(axis) or ()), ndim)
    others = [a for a in range(ndim) if a not in axes]
    rows = g.transpose(x, perm=[*others, *axes])
    rows = flatten(rows, len(others), ndim - 1) if len(axes) != 1 else rows
    values = sort(rows, -1)
    count = g.reduce_sum(cast(g.logical_not(isnan(rows)), float64), axis=[-1], keepdim=True)
    found = []
    for q in fractions:
        require(isinstance(q, (int, float)) and 0 <= q <= 1, f"q must lie in [0, 1], is {q!r}", AttrError)
        place = g.scale(g.clip(g.scale(count, bias=-1.0), min=0.0), scale=float(q))
        low, high = (
            take_along_axis(values, cast(end, "int64"), len(others), broadcast=False)
            for end in (g.floor(place), g.ceil(place))
        )
        share = as_type(place - g.floor(place), x.dtype)
        out = g.squeeze(low + (high - low) * share, axes=[len(others)])
        found.append(g.unsqueeze(out, axes=axes, name=output_prefix(call, name)) if keepdim else out)
    return found


@whole
def nanmedian(
    x: Variable, axis: Any = None, keepdim: bool = False, mode: str = "avg", name: str | None = None
) -> Variable:  # fmt: skip
    """The middle element over `axis` of what is not NaN, the mean of the two middle ones; NaN where all are.

    Ints become float32.
    """
    x = variable(x, "nanmedian")
    require(mode == "avg", f"mode {mode!r} is not here, only 'avg'", NOT_OFFERED)
    x = x if x.dtype in FLOATS else as_type(x, float32)
    return _numbers_quantiles(x, [0.5], axis, keepdim, "nanmedian", name)[0]


@whole
def nanquantile(x: Variable, q: Any, axis: Any = None, keepdim: bool = False) -> Variable:
    """As quantile, of what is not NaN."""
    fractions = list(q) if isinstance(q, (list, tuple)) else [q]
    wide = cast(variable(x, "nanquantile"), float64)
    found = _numbers_quantiles(wide, fractions, axis, keepdim, "nanquantile", None)
    return stack(found, axis=0) if isinstance(q, (list, tuple)) else found[0]


# Draws that sort


@whole
def randperm(n: int, dtype: Any = "int64", name: str | None = None) -> Variable:
    """0, 1, ..., n - 1 in random order."""
    g = builder_of()
    _, order = g.argsort(g.uniform_random(shape=(n,), min=0.0, max=1.0, dtype=float64))
    return g.cast(order, dtype=as_dtype(dtype), name=output_prefix("randperm", name))


@whole
def multinomial(x: Variable, num_samples: int = 1, replacement: bool = False, name: str | None = None) -> Variable:
    """Classes drawn from the weights of each row of x, int64 [..., num_samples]; sizes must be known.

    Without replacement no class comes twice; classes of weight 0 come last then.
    """
    x = variable(x, "multinomial")
    require(x.ndim in (1, 2) and -1 not in x.shape, f"x must be a vector or matrix of known sizes, is {x}", RANK)
    require(x.dtype in FLOATS, f"weights are floats, x is {x}", DTypeError)
    g, weights, classes = builder_of(x), cast(x, float64), x.shape[-1]
    require(num_samples >= 1, f"num_samples is {num_samples}", AttrError)
    if replacement:
        sums = cumsum(weights, -1)
        total = slice(sums, [-1], [classes - 1], [classes])
        draws = g.uniform_random(shape=(*x.shape[:-1], num_samples), min=0.0, max=1.0, dtype=float64)
        return g.searchsorted(sums, draws * total, right=True, name=output_prefix("multinomial", name))
    require(num_samples <= classes, f"num_samples {num_samples} of {classes} classes without replacement", AttrError)
    draws = g.uniform_random(shape=x.shape, min=0.0, max=1.0, dtype=float64)
    _, order = g.argsort(log(1.0 - draws) / weights, descending=True)  # a race: log of a uniform number by its weight
    return slice(order, [-1], [0], [num_samples], name=name)


# Neighbours


@whole
def diff(
    x: Variable, n: int = 1, axis: int = -1, prepend: Variable | None = None, append: Variable | None = None,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """The differences of neighbours along `axis`, n times; with what is put before and behind x first."""
    x = variable(x, "diff")
    axis = normalize_axis(axis, x.ndim)
    parts = [v for v in (prepend, x, append) if v is not None]
    out = concat(parts, axis) if len(parts) > 1 else x
    require(n >= 1, f"n must be at least 1, is {n}", AttrError)
    g, end = builder_of(x), 2**62
    for _ in range(n):
        out = g.elementwise_sub(slice(out, [axis], [1], [end]), slice(out, [axis], [0], [-1]))
    return g.assign(out, name=output_prefix("diff", name))


__all__ = [
    "argsort", "bincount", "bucketize", "diff", "histogram", "kthvalue", "median", "mode", "multinomial", "nanmedian",
    "nanquantile", "quantile", "randperm", "searchsorted", "sort", "topk",
]  # fmt: skip
