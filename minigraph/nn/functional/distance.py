"""Lengths and angles of vectors."""

from __future__ import annotations

import math

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor import abs, cast, clip, max, pow, sqrt, square, subtract, sum, where
from minigraph.tensor.arguments import variable


@whole
def cosine_similarity(x1: Variable, x2: Variable, axis: int = 1, eps: float = 1e-8) -> Variable:
    """sum(x1 * x2) / max(|x1| |x2|, eps) along `axis`; x1 and x2 broadcast."""
    x, y = variable(x1, "cosine_similarity", "x1"), variable(x2, "cosine_similarity", "x2")
    lengths = sum(square(x), axis=axis) * sum(square(y), axis=axis)
    return sum(x * y, axis=axis) / sqrt(clip(lengths, min=eps * eps))


@whole
def normalize(
    x: Variable, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """x / max(norm, epsilon), of which `norm` is the p-norm along `axis`."""
    x = variable(x, "normalize")
    return x / clip(length(x, p, axis if x.ndim > 1 or axis != 1 else 0, keepdim=True), min=epsilon)


@whole
def pairwise_distance(
    x: Variable, y: Variable, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False, name: str | None = None
) -> Variable:
    """The p-norm along the last axis of x - y + epsilon."""
    call = "pairwise_distance"
    difference = subtract(variable(x, call), variable(y, call, "y"))
    return length(difference + epsilon if epsilon else difference, p, -1, keepdim)


def length(x: Variable, p: float, axis: int, keepdim: bool = False) -> Variable:
    """The p-norm of x along `axis`, p > 0 or infinite, or 0: how many are not 0. Of zeros it is 0, with gradient 0."""
    require(p >= 0, f"p must not be negative, is {p}", AttrError)
    if p == 0:
        return sum(cast(x != 0, x.dtype), axis=axis, keepdim=keepdim)
    size = abs(x)
    if p == math.inf:
        return max(size, axis=axis, keepdim=keepdim)
    if p == 1:
        return sum(size, axis=axis, keepdim=keepdim)
    total = sum(square(x) if p == 2 else pow(size, p), axis=axis, keepdim=keepdim)
    some = total > 0
    base = where(some, total, 1.0)  # a root has no slope at 0
    return where(some, sqrt(base) if p == 2 else pow(base, 1 / p), 0.0)


__all__ = ["cosine_similarity", "normalize", "pairwise_distance"]
