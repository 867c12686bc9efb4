"""What runs along an axis: products, largest and smallest elements, logarithms of sums, and linear recurrences.

In all of them an element of the result depends on the elements of X up to its own place, or with `reverse` on those
from it on. cumsum is in ops/elementwise/reduce.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.opdef import OpDef, op
from minigraph.types import bool_, int64, normalize_axis


def _along(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """x with its axis in front, and turned round where it runs from the end."""
    x = np.moveaxis(x, axis, 0)
    return x[::-1] if reverse else x


def shifted(g: Any, x: Any, axis: int, reverse: bool) -> Any:
    """x moved on by one place in the direction in which a scan runs, with 0 where it begins."""

    def part(start: int, end: int) -> Any:
        return g.slice(x, axes=[axis], starts=[start], ends=[end])

    zero = g.fill_any_like(part(0, 1), value=0.0)
    return g.concat([part(1, 2**62), zero] if reverse else [zero, part(0, -1)], axis=axis % x.type.ndim)


def _infer(X, *, axis, **attrs):
    normalize_axis(axis, X.ndim)
    require(X.dtype != bool_, "X is bool", DTypeError, "cast it first")
    return X


def _samples(rng):
    for reverse in (False, True):
        yield (rng.normal(size=(2, 4, 3)),), {"axis": 1, "reverse": reverse}
        yield (rng.normal(size=(2, 70)),), {"axis": -1, "reverse": reverse}
    yield (rng.normal(size=(1, 3)),), {"axis": 0}
    yield (np.zeros((2, 0)),), {"axis": 1}


@op(gpu="rows.scan")
def cumprod(X, *, axis: int, exclusive: bool = False, reverse: bool = False):
    """Products of the elements up to each one along `axis`; `exclusive` leaves the element itself out."""
    result = np.ones(X.shape, X.dtype)
    terms, products = _along(X, axis, reverse), _along(result, axis, reverse)
    if exclusive:
        terms, products = terms[:-1], products[1:]
    np.cumprod(terms, axis=0, dtype=X.dtype, out=products)
    return result


cumprod.infer(_infer)


@cumprod.grad
def _(g, X, Out_grad, *, axis, exclusive, reverse):
    """The product of those before an element, times what all behind it multiply; no division, so zeros are right."""
    before = g.cumprod(X, axis=axis, exclusive=True, reverse=reverse)
    behind = g.linear_recurrence(X, Out_grad, axis=axis, reverse=not reverse, lagged=not exclusive)
    return g.elementwise_mul(before, shifted(g, behind, axis, not reverse) if exclusive else behind)


@cumprod.samples
def _(rng):
    for (x,), attrs in _samples(rng):
        for exclusive in (False, True):
            yield (1 + x / 4,), {**attrs, "exclusive": exclusive}
    yield (np.array([2.0, 0.0, 3.0, 0.0, 5.0]),), {"axis": 0}
    yield (np.array([2.0, 0.0, 3.0, 4.0]),), {"axis": 0, "exclusive": True, "reverse": True}
    yield (np.array([1, 2, 3], np.int32),), {"axis": 0}


@op(gpu="rows.scan")
def linear_recurrence(A, B, *, axis: int, reverse: bool = False, lagged: bool = False):
    """Out[i] = A[i] * Out[i - 1] + B[i] along `axis`, Out[-1] = 0; with `lagged` A[i - 1] in the place of A[i]."""
    result = np.zeros(B.shape, B.dtype)
    a, b, out = (_along(x, axis, reverse) for x in (A, B, result))
    if len(b):
        out[0] = b[0]
    for i in range(1, len(b)):
        out[i] = a[i - lagged] * out[i - 1] + b[i]
    return result


@linear_recurrence.infer
def _(A, B, *, axis, reverse, lagged):
    require(A.accepts(B) or B.accepts(A), f"A is {A}, B is {B}: not of one type")
    require(B.is_float, f"B must be a float, is {B}", DTypeError)
    return _infer(B, axis=axis)


@linear_recurrence.grad
def _(g, A, Out, Out_grad, *, axis, reverse, lagged):
    """The recurrence that runs back; A[i] meets what one side of it knows with the slope of the other side."""
    B_grad = g.linear_recurrence(A, Out_grad, axis=axis, reverse=not reverse, lagged=not lagged)
    if lagged:
        return g.elementwise_mul(Out, shifted(g, B_grad, axis, not reverse)), B_grad
    return g.elementwise_mul(shifted(g, Out, axis, reverse), B_grad), B_grad


@linear_recurrence.samples
def _(rng):
    for lagged in (False, True):
        for (x,), attrs in _samples(rng):
            yield (0.7 + x / 8, rng.normal(size=x.shape)), {**attrs, "lagged": lagged}


@op(gpu="rows.scan")
def logcumsumexp(X, *, axis: int, reverse: bool = False):
    """log of the sums of e^X up to each element along `axis`, without overflow."""
    result = np.empty(X.shape, X.dtype)
    wide = _along(X, axis, reverse).astype(np.float64)
    _along(result, axis, reverse)[...] = np.logaddexp.accumulate(wide, axis=0)
    return result


@logcumsumexp.infer
def _(X, *, axis, reverse):
    require(X.is_float, f"X must be a float, is {X}", DTypeError)
    return _infer(X, axis=axis)


@logcumsumexp.grad
def _(g, X, Out, Out_grad, *, axis, reverse):
    """e^(X[i] - Out[i]) times the sum of Out_grad[j] e^(Out[i] - Out[j]) over j from i on; no exponent is positive."""
    known = g.where(g.isfinite(Out), Out, g.fill_any_like(Out, value=0.0))
    step = g.clip(g.elementwise_sub(known, shifted(g, known, axis, not reverse)), max=0.0)
    total = g.linear_recurrence(g.exp(step), Out_grad, axis=axis, reverse=not reverse)
    return g.elementwise_mul(g.exp(g.elementwise_sub(X, known)), total)


@logcumsumexp.samples
def _(rng):
    yield from _samples(rng)
    yield (np.array([1000.0, 1001.0, -1000.0, 999.0]),), {"axis": 0}
    yield (np.array([-np.inf, -np.inf, 1.0, -np.inf, 2.0]),), {"axis": 0}


def _extremum(name: str, better: np.ufunc, word: str) -> OpDef:
    def running(X, *, axis: int):
        rows = np.moveaxis(X, axis, 0)
        values, places = np.array(rows), np.zeros(rows.shape, np.int64)
        for i in range(1, len(rows)):
            taken = ~better(values[i - 1], rows[i]) & (values[i - 1] == values[i - 1])
            values[i] = np.where(taken, rows[i], values[i - 1])
            places[i] = np.where(taken, i, places[i - 1])
        return tuple(np.ascontiguousarray(np.moveaxis(x, 0, axis)) for x in (values, places))

    running.__name__ = name
    running.__doc__ = f"""The {word} element up to each one along `axis`, and its place (int64).

    Of equal ones the last; NaN wins, and the first one stays.
    """
    opdef: OpDef = op("Out, Indices", gpu="rows.scan")(running)

    @opdef.infer
    def _(X, *, axis):
        return _infer(X, axis=axis), X.with_dtype(int64)

    @opdef.grad
    def _(g, X, Indices, Out_grad, *, axis):
        places = g.flatten(g.flat_index_along(X, Indices, axis=axis))
        return g.reshape_grad(X, g.gather_grad(g.flatten(X), places, g.flatten(Out_grad), axis=0))

    @opdef.samples
    def _(rng):
        for (x,), attrs in _samples(rng):
            if not attrs.get("reverse"):
                yield (x,), {"axis": attrs["axis"]}
        yield (np.array([1, 3, 3, 2, 5, 1]),), {"axis": 0}
        yield (np.array([1.0, np.nan, 3.0, np.nan], np.float32),), {"axis": 0}

    return opdef


cummax = _extremum("cummax", np.greater, "largest")
cummin = _extremum("cummin", np.less, "smallest")
