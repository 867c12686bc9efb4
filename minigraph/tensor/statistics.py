"""Reductions that are made of other ones: variances, norms, logarithms of sums, counts."""

from __future__ import annotations

import math
from typing import Any

from minigraph.errors import AttrError, DTypeError, call_site, require
from minigraph.errors.kinds import UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import FLOATS, bool_, normalize_axes

from .arguments import as_type, emit, ints, output_prefix, scalars_as_rows, variable
from .functions import isclose, isnan
from .logic import not_equal, where
from .math import amax, amin, cast, max, mean, min, sum


def _truth(x: Any, call: str) -> Variable:
    x = variable(x, call)
    return x if x.dtype == bool_ else as_type(x, bool_)


@scalars_as_rows
@whole
def all(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """Whether no element over `axis` is 0 or False, as bool."""
    return emit("all", "reduce_min", _truth(x, "all"), axis=ints(axis), keepdim=keepdim, name=name)


@scalars_as_rows
@whole
def any(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """Whether an element over `axis` is neither 0 nor False, as bool."""
    return emit("any", "reduce_max", _truth(x, "any"), axis=ints(axis), keepdim=keepdim, name=name)


@whole
def allclose(
    x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """Whether isclose holds for all elements, a 0-d bool."""
    return all(isclose(x, y, rtol, atol, equal_nan), name=name)


@whole
def equal_all(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Whether x and y have one shape and equal elements, a 0-d bool."""
    x, y = variable(x, "equal_all"), variable(y, "equal_all", "y")
    if x.ndim != y.ndim or -1 in x.shape or -1 in y.shape or x.shape != y.shape:
        same = x.shape == y.shape
        require(same or (-1 not in x.shape and -1 not in y.shape), f"sizes of {x} and {y} must be known", UNKNOWN_SIZE)
        if not same:
            return builder_of(x).fill_constant(shape=(), value=False, dtype=bool_)
    return all(builder_of(x).equal(x, y), name=name)


@whole
def count_nonzero(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """How many elements over `axis` are not 0, int64."""
    return sum(cast(not_equal(variable(x, "count_nonzero"), 0), "int64"), axis, keepdim=keepdim, name=name)


@whole
def nansum(
    x: Variable, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """The sum over `axis` of what is not NaN."""
    x = variable(x, "nansum")
    return sum(where(isnan(x), 0.0, x), axis, dtype, keepdim, name)


@whole
def nanmean(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The mean over `axis` of what is not NaN."""
    x = variable(x, "nanmean")
    g = builder_of(x)
    count = sum(as_type(g.logical_not(isnan(x)), x.dtype), axis, keepdim=keepdim)
    return g.elementwise_div(nansum(x, axis, keepdim=keepdim), count, name=output_prefix("nanmean", name))


@whole
def var(
    x: Variable, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """The variance of floats over `axis`; `unbiased` divides by one less than the number of elements, at least 1."""
    x = variable(x, "var")
    if x.dtype not in FLOATS:
        raise DTypeError(f"x must be a float, is {x}", call="var", site=call_site())
    g = builder_of(x)
    square = g.square(g.elementwise_sub(x, mean(x, axis, keepdim=True)))
    if not unbiased:
        return mean(square, axis, keepdim, name)
    axes = normalize_axes(None if ints(axis) is None else tuple(ints(axis) or ()), x.ndim)
    sizes = [x.shape[a] for a in axes]
    if -1 in sizes:
        ones = g.fill_any_like(x, value=1.0)
        count = g.clip(g.scale(sum(ones, axis, keepdim=keepdim), bias=-1.0), min=1.0)
        total = sum(square, axis, keepdim=keepdim)
        return g.elementwise_div(total, count, name=output_prefix("var", name))
    count = math.prod(sizes) - 1
    return g.scale(sum(square, axis, keepdim=keepdim), scale=1 / (count if count > 0 else 1),
                   name=output_prefix("var", name))  # fmt: skip


@whole
def std(
    x: Variable, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """The square root of var."""
    return emit("std", "sqrt", var(x, axis, unbiased, keepdim), name=name)


@whole
def logsumexp(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """log(sum(e ** x)) over `axis`, without overflow."""
    x = variable(x, "logsumexp")
    g = builder_of(x)
    largest = max(x, axis, keepdim=True)
    largest = where(g.isfinite(largest), largest, 0.0)
    largest.stop_gradient = True  # what it adds it takes away
    total = g.log(sum(g.exp(g.elementwise_sub(x, largest)), axis, keepdim=keepdim))
    back = largest if keepdim else g.reshape_grad(total, largest)
    return g.elementwise_add(total, back, name=output_prefix("logsumexp", name))


@whole
def norm(
    x: Variable, p: Any = None, axis: Any = None, keepdim: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """The p-norm of the elements over `axis` (None: all): (sum of |x| ** p) ** (1 / p).

    p  "fro" or None: 2; inf and -inf: the largest and the smallest |x|; 0: how many elements are not 0
    The gradient of a norm that is 0 is 0.
    """
    x = variable(x, "norm")
    if p in (None, "fro"):
        p = 2.0
    if isinstance(p, str) or not isinstance(p, (int, float)):
        raise AttrError(f"p is {p!r}, a norm takes a number or 'fro'", call="norm", site=call_site())
    g, prefix = builder_of(x), output_prefix("norm", name)
    if p == 0:
        return g.cast(count_nonzero(x, axis, keepdim), dtype=x.dtype, name=prefix)
    size = g.abs(x)
    if math.isinf(p):
        return (max if p > 0 else min)(size, axis, keepdim, name)
    if p == 1:
        return sum(size, axis, keepdim=keepdim, name=name)
    total = sum(g.square(x) if p == 2 else g.pow(size, factor=float(p)), axis, keepdim=keepdim)
    zero, one = g.fill_any_like(total, value=0.0), g.fill_any_like(total, value=1.0)
    nothing = g.equal(total, zero)
    some = g.where(nothing, one, total)
    root = g.sqrt(some) if p == 2 else g.pow(some, factor=1 / p)
    return g.where(nothing, zero, root, name=prefix)


@whole
def dist(x: Variable, y: Variable, p: float = 2.0, name: str | None = None) -> Variable:
    """The p-norm of x - y, which broadcast; 0-d."""
    return norm(variable(x, "dist") - variable(y, "dist", "y"), float(p), name=name)


__all__ = [
    "all", "allclose", "amax", "amin", "any", "count_nonzero", "dist", "equal_all", "logsumexp", "nanmean", "nansum",
    "norm", "std", "var",
]  # fmt: skip
