"""What runs along an axis: products, extrema and logarithms of sums up to each element; areas under curves."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import CONFLICT, RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import FLOATS, as_dtype, int32, int64, normalize_axis

from .arguments import emit, output_prefix, scalars_as_rows, variable
from .manipulation import concat, expand, flatten
from .math import cast, cumsum, sum
from .pieces import flip, slice


@scalars_as_rows
@whole
def cumprod(x: Variable, dim: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """Products of the elements up to each one along `dim`."""
    x = variable(x, "cumprod")
    require(isinstance(dim, int), f"dim must be an int, is {dim!r}", AttrError)
    return emit("cumprod", "cumprod", x if dtype is None else cast(x, dtype), axis=dim, name=name)


@whole
def logcumsumexp(x: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """log of the sums of e ** x up to each element along `axis`, without overflow; x is laid flat for None."""
    x = variable(x, "logcumsumexp")
    x = x if dtype is None else cast(x, dtype)
    x, axis = (flatten(x), 0) if axis is None else (x, axis)
    return emit("logcumsumexp", "logcumsumexp", x, axis=axis, name=name)


@whole
def _running(kind: str, x: Any, axis: int | None, dtype: Any, name: str | None) -> tuple[Variable, Variable]:
    x, dtype = variable(x, kind), as_dtype(dtype)
    require(dtype in (int32, int64), f"positions are int32 or int64, not {dtype}", DTypeError)
    x, axis = (flatten(x), 0) if axis is None else (x, axis)
    values, places = emit(kind, kind, x, axis=axis, name=name)
    return values, places if dtype == int64 else cast(places, dtype)


def cummax(
    x: Variable, axis: int | None = None, dtype: Any = "int64", name: str | None = None
) -> tuple[Variable, Variable]:  # fmt: skip
    """The largest element up to each one along `axis` (None: laid flat), and its place, of equal ones the last."""
    return _running("cummax", x, axis, dtype, name)


def cummin(
    x: Variable, axis: int | None = None, dtype: Any = "int64", name: str | None = None
) -> tuple[Variable, Variable]:  # fmt: skip
    """The smallest element up to each one along `axis` (None: laid flat), and its place, of equal ones the last."""
    return _running("cummin", x, axis, dtype, name)


def _areas(y: Variable, x: Variable | None, dx: Any, axis: int, call: str) -> Variable:
    """The area between each two neighbours."""
    y = variable(y, call, "y")
    require(y.dtype in FLOATS, f"y must be a float, is {y}", DTypeError)
    require(x is None or dx is None, "x and dx are both given, they say the same", CONFLICT)
    axis, g = normalize_axis(axis, y.ndim), builder_of(y)

    def neighbours(v: Variable, along: int) -> tuple[Variable, Variable]:
        return slice(v, [along], [1], [2**62]), slice(v, [along], [0], [-1])

    heights = g.scale(g.elementwise_add(*neighbours(y, axis)), scale=0.5)
    if x is None:
        return heights * (1.0 if dx is None else dx)
    x = variable(x, call, "x")
    require(x.ndim in (1, y.ndim), f"x must be a vector or have the rank of y, is {x}", RANK)
    widths = g.elementwise_sub(*neighbours(x, axis if x.ndim == y.ndim else 0))
    if x.ndim < y.ndim:
        widths = g.unsqueeze(widths, axes=range(1, y.ndim - axis)) if axis < y.ndim - 1 else widths
    return heights * widths


@whole
def trapezoid(
    y: Variable, x: Variable | None = None, dx: float | None = None, axis: int = -1, name: str | None = None
) -> Variable:  # fmt: skip
    """The area under y along `axis` by the trapezoidal rule, at the places x, or in steps of dx (1)."""
    return sum(_areas(y, x, dx, axis, "trapezoid"), axis, name=name)


@whole
def cumulative_trapezoid(
    y: Variable, x: Variable | None = None, dx: float | None = None, axis: int = -1, name: str | None = None
) -> Variable:  # fmt: skip
    """The areas of trapezoid up to each element but the first."""
    return cumsum(_areas(y, x, dx, axis, "cumulative_trapezoid"), axis, name=name)


@whole
def vander(x: Variable, n: int | None = None, increasing: bool = False, name: str | None = None) -> Variable:
    """The powers x ** (n - 1), ..., x ** 0 of a vector, one in each column; the other way round with `increasing`."""
    x = variable(x, "vander")
    require(x.ndim == 1, f"x must be a vector, is {x}", RANK)
    n = x.shape[0] if n is None else n
    require(n >= 0, f"n must be known and not negative, is {n}", AttrError)
    g = builder_of(x)
    column = g.unsqueeze(x, axes=[1])
    ones = g.fill_any_like(column, value=1)
    parts = [ones] * min(n, 1) + ([expand(column, [-1, n - 1])] if n > 1 else [])
    powers = g.cumprod(concat(parts, 1), axis=1) if parts else slice(column, [1], [0], [0])
    return g.assign(powers if increasing else flip(powers, 1), name=output_prefix("vander", name))


__all__ = [
    "cummax", "cummin", "cumprod", "cumulative_trapezoid", "logcumsumexp", "trapezoid", "vander",
]  # fmt: skip
