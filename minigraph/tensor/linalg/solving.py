"""Systems of equations, inverses and determinants."""

from __future__ import annotations

import math
from typing import Any

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import broadcast_shapes

from ..arguments import emit, output_prefix, variable
from ..manipulation import expand, stack
from ..math import matmul, sum
from ..pieces import slice
from ..statistics import norm
from .factors import STEPS, known_sizes, svd


def of_one_batch(x: Variable, y: Variable) -> tuple[Variable, Variable]:
    """Both with the axes before their matrices that they broadcast to."""
    require(min(x.ndim, y.ndim) >= 2, f"x and y must hold matrices in their last two axes, are {x} and {y}", RANK)
    if x.ndim == y.ndim == 2:
        return x, y
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2], last=-3)
    x, y = (v if v.shape[:-2] == batch else expand(v, [*batch, *v.shape[-2:]]) for v in (x, y))
    return x, y


@whole
def solve(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The z with x @ z = y; x [..., n, n], y [..., n, k] or a vector [n]. A singular x is a KernelError."""
    x, y = variable(x, "solve"), variable(y, "solve", "y")
    g, vector = builder_of(x), y.ndim == 1
    if vector:
        y = g.unsqueeze(y, axes=[1])
    x, y = of_one_batch(x, y)
    if not vector:
        return g.solve(x, y, name=output_prefix("solve", name))
    return g.squeeze(g.solve(x, y), axes=[x.ndim - 1], name=output_prefix("solve", name))


@whole
def triangular_solve(
    x: Variable, y: Variable, upper: bool = True, transpose: bool = False, unitriangular: bool = False,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """The z with T @ z = y, T the upper or lower triangle of x, transposed with `transpose`.

    unitriangular  T has 1 on its diagonal, whatever x has there
    """
    x, y = of_one_batch(variable(x, "triangular_solve"), variable(y, "triangular_solve", "y"))
    attrs = {"upper": upper, "transpose": transpose, "unitriangular": unitriangular}
    return emit("triangular_solve", "triangular_solve", x, y, **attrs, name=name)


@whole
def cholesky_solve(x: Variable, y: Variable, upper: bool = False, name: str | None = None) -> Variable:
    """The z with A @ z = x, where y is the Cholesky factor of A."""
    x, y = variable(x, "cholesky_solve"), variable(y, "cholesky_solve", "y")
    half = triangular_solve(y, x, upper=upper, transpose=upper)
    return triangular_solve(y, half, upper=upper, transpose=not upper, name=name)


@whole
def inv(x: Variable, name: str | None = None) -> Variable:
    """The inverses of square matrices; a singular one is a KernelError."""
    x = variable(x, "inverse")
    g = builder_of(x)
    unit = g.tril_triu(g.tril_triu(g.fill_any_like(x, value=1.0)), lower=False)
    return g.solve(x, unit, name=output_prefix("inverse", name))


inverse = inv


def pinv(x: Variable, rcond: float = 1e-15, hermitian: bool = False, name: str | None = None) -> Variable:
    """The Moore-Penrose inverse [..., n, m] of matrices [..., m, n].

    rcond      singular values below `rcond` times the largest one count as 0
    hermitian  x is symmetric; only its lower triangle is read
    """
    return emit("pinv", "pinv", variable(x, "pinv"), rcond=rcond, hermitian=hermitian, name=name)


def det(x: Variable, name: str | None = None) -> Variable:
    """The determinants of square matrices; the gradient at a singular one is a KernelError."""
    return emit("det", "determinant", variable(x, "det"), name=name)


@whole
def slogdet(x: Variable, name: str | None = None) -> Variable:
    """[2, ...]: the signs of the determinants, and log |determinant|."""
    sign, size = emit("slogdet", "slogdeterminant", variable(x, "slogdet"))
    sign.stop_gradient = True  # it has no slope
    return stack([sign, size], axis=0, name=name)


@whole
def lstsq(
    x: Variable, y: Variable, rcond: float | None = None, driver: str | None = None, name: str | None = None
) -> tuple[Variable, Variable, Variable, Variable]:  # fmt: skip
    """The z for which |x @ z - y| is least, the shortest of several; x [..., m, n], y [..., m, k].

    rcond   singular values below `rcond` times the largest one count as 0; None: the step of x's type times max(m, n)
    driver  which of the others are there, as LAPACK's would give them: None or gelsy no singular values, gels no rank
            either; one way, by singular values, computes all of them
    The others are the squared distances [..., k], empty for m <= n; the rank, int32; the singular values; or empty.
    """
    x, y = of_one_batch(variable(x, "lstsq"), variable(y, "lstsq", "y"))
    require(driver in (None, "gels", "gelsy", "gelsd", "gelss"), f"driver {driver!r} is unknown", AttrError)
    rows, columns = known_sizes(x, "lstsq")
    g = builder_of(x)
    least = max(rows, columns) * STEPS[x.dtype.name] if rcond is None else float(rcond)
    solution = matmul(pinv(x, rcond=least), y, name=name)
    nothing = g.fill_constant(shape=[0], value=0.0, dtype=x.dtype)
    residuals = sum(g.square(matmul(x, solution) - y), -2) if rows > columns else nothing
    if driver == "gels":
        return solution, residuals, nothing, nothing
    s = svd(x)[1]
    above = s > slice(s, [-1], [0], [1]) * least
    rank = g.cast(g.reduce_sum(g.cast(above, dtype="int64"), axis=[-1]), dtype="int32")
    return solution, residuals, rank, s if driver in ("gelsd", "gelss") else nothing


@whole
def cond(x: Variable, p: Any = None, name: str | None = None) -> Variable:
    """The norm of matrices times that of their inverses.

    p  None or 2, -2: largest by smallest singular value, or the other way round; "nuc": sums of singular values;
       "fro": roots of sums of squares; 1, -1: largest or smallest sum of a column; inf, -inf: of a row
    """
    x = variable(x, "cond")
    g, prefix = builder_of(x), output_prefix("cond", name)
    if p in (None, 2, -2):
        s = svd(x)[1]
        ends = g.reduce_max(s, axis=[-1]), g.reduce_min(s, axis=[-1])
        return g.elementwise_div(*(reversed(ends) if p == -2 else ends), name=prefix)
    norms = [_matrix_norm(m, p) for m in (x, inv(x))]
    return g.elementwise_mul(*norms, name=prefix)


def _matrix_norm(x: Variable, p: Any) -> Variable:
    g = builder_of(x)
    if p == "fro":
        return norm(x, 2.0, [-2, -1])
    if p == "nuc":
        return g.reduce_sum(svd(x)[1], axis=[-1])
    require(p in (1, -1, math.inf, -math.inf), f"p is {p!r}, known are None, fro, nuc, 1, 2, inf and their negatives",
            AttrError)  # fmt: skip
    sums = g.reduce_sum(g.abs(x), axis=[-2 if abs(p) == 1 else -1])
    return (g.reduce_max if p > 0 else g.reduce_min)(sums, axis=[-1])


__all__ = [
    "cholesky_solve", "cond", "det", "inv", "inverse", "lstsq", "pinv", "slogdet", "solve", "triangular_solve",
]  # fmt: skip
