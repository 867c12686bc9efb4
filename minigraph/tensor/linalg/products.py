"""Products of several matrices, powers, covariances."""

from __future__ import annotations

from functools import cache
from typing import Any

from minigraph.errors import AttrError, DTypeError, ShapeError, require
from minigraph.errors.kinds import RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import FLOATS, INTS

from ..arguments import as_type, output_prefix, variable, variables
from ..manipulation import reshape
from ..math import clip, matmul, mean, sum
from .solving import inv


@whole
def matrix_power(x: Variable, n: int, name: str | None = None) -> Variable:
    """x @ x @ ... n times; unit matrices for 0, powers of the inverse for n < 0."""
    x = variable(x, "matrix_power")
    require(isinstance(n, int), f"n must be an int, is {n!r}", AttrError)
    require(x.ndim >= 2 and (x.shape[-1] == x.shape[-2] or -1 in x.shape[-2:]), f"x must hold square matrices, is {x}",
            ShapeError)  # fmt: skip
    g, square, out = builder_of(x), inv(x) if n < 0 else x, None
    rest = abs(n)
    while rest:
        if rest % 2:
            out = square if out is None else matmul(out, square)
        rest //= 2
        square = matmul(square, square) if rest else square
    if out is None:
        out = g.tril_triu(g.tril_triu(g.fill_any_like(x, value=1.0)), lower=False)
    return g.assign(out, name=output_prefix("matrix_power", name))


@whole
def multi_dot(x: Any, name: str | None = None) -> Variable:
    """The product of the matrices of a list, in the order that multiplies fewest numbers; the ends may be vectors."""
    parts = variables(x, "multi_dot")
    g, (first, last) = builder_of(parts), (parts[0].ndim == 1, parts[-1].ndim == 1)
    require(len(parts) > 1, "x must hold two matrices or more", ShapeError)
    if first:
        parts[0] = g.unsqueeze(parts[0], axes=[0])
    if last:
        parts[-1] = g.unsqueeze(parts[-1], axes=[1])
    require(all(v.ndim == 2 for v in parts), f"x must hold matrices, is {[str(v) for v in parts]}", RANK)
    sizes = [parts[0].shape[0], *(v.shape[1] for v in parts)]

    @cache
    def best(i: int, j: int) -> tuple[int, int]:
        """The least cost of parts i to j, and after which one to cut."""
        costs = [(best(i, k)[0] + best(k + 1, j)[0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)]
        return min(costs, default=(0, i))

    def product(i: int, j: int) -> Variable:
        if i == j:
            return parts[i]
        cut = best(i, j)[1] if -1 not in sizes else j - 1
        return matmul(product(i, cut), product(cut + 1, j))

    out = product(0, len(parts) - 1)
    if first or last:
        out = g.squeeze(out, axes=[a for a, is_vector in enumerate((first, last)) if is_vector])
    return g.assign(out, name=output_prefix("multi_dot", name))


@whole
def cov(
    x: Variable, rowvar: bool = True, ddof: bool = True, fweights: Variable | None = None,
    aweights: Variable | None = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """The covariances [variables, variables] of a vector or a matrix.

    rowvar    each row is a variable, each column an observation; else the other way round
    ddof      divide by one less than the number of observations
    fweights  how often each observation was made, ints;  aweights: how much it counts, floats
    """
    x = variable(x, "cov")
    require(x.ndim in (1, 2), f"x must be a vector or a matrix, is {x}", RANK)
    require(x.dtype in FLOATS, f"x must be a float, is {x}", DTypeError)
    g = builder_of(x)
    rows = reshape(x, [1, -1]) if x.ndim == 1 else x if rowvar else g.transpose(x, perm=[1, 0])
    weights = share = None
    if fweights is not None:
        times = variable(fweights, "cov", "fweights")
        require(times.dtype in INTS, f"fweights must hold ints, is {times}", DTypeError)
        weights = as_type(times, x.dtype)
    if aweights is not None:
        share = as_type(variable(aweights, "cov", "aweights"), x.dtype)
        weights = share if weights is None else weights * share
    if weights is None:
        observations = sum(g.fill_any_like(rows, value=1.0), -1, keepdim=True)
        centred, total = rows - mean(rows, -1, keepdim=True), observations
        weighted, taken = centred, observations * 0.0 + 1.0
    else:
        total = sum(weights)
        centred = rows - sum(rows * weights, -1, keepdim=True) / total
        weighted = centred * weights
        taken = g.fill_any_like(total, value=1.0) if share is None else sum(weights * share) / total
    divisor = clip(total - taken, 0.0) if ddof else total
    out = matmul(weighted, centred, transpose_y=True) / divisor
    return reshape(out, [], name=name) if x.ndim == 1 else g.assign(out, name=output_prefix("cov", name))


@whole
def corrcoef(x: Variable, rowvar: bool = True, name: str | None = None) -> Variable:
    """The correlations of the variables of a vector or a matrix, in [-1, 1]; as cov."""
    c = cov(x, rowvar)
    g = builder_of(c)
    if c.ndim == 0:
        return g.elementwise_div(c, c, name=output_prefix("corrcoef", name))
    unit = g.tril_triu(g.tril_triu(g.fill_any_like(c, value=1.0)), lower=False)
    spread = g.sqrt(sum(c * unit, -1))
    scaled = c / g.unsqueeze(spread, axes=[1]) / g.unsqueeze(spread, axes=[0])
    return g.clip(scaled, min=-1.0, max=1.0, name=output_prefix("corrcoef", name))


__all__ = ["corrcoef", "cov", "matrix_power", "multi_dot"]
