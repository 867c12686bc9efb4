"""Elementary operations on lists of arrays on a CPU: in place where the plan says so, spread over the cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.parallel import for_blocks

BLOCK = 131072  # elements

Arrays = list[np.ndarray]


def _binary(ufunc: np.ufunc) -> Callable[..., Any]:
    def kernel(
        X: Arrays, Y: Arrays | None = None, *, y: float, reverse: bool, out: Sequence[Any] | None = None
    ) -> Arrays:
        results = []
        for i, (x, to) in enumerate(zip(X, _targets(X, out), strict=True)):
            number = x.dtype.type
            other: Any = number(y) if Y is None else Y[i % len(Y)]
            if isinstance(other, np.ndarray) and (other.shape, other.dtype) != (x.shape, x.dtype):
                other = number(other.item())
            results.append(_applied(ufunc, (other, x) if reverse else (x, other), to))
        return results

    return kernel


def _unary(ufunc: np.ufunc) -> Callable[..., Any]:
    def kernel(X: Arrays, *, out: Sequence[Any] | None = None) -> Arrays:
        return [_applied(ufunc, (x,), to) for x, to in zip(X, _targets(X, out), strict=True)]

    return kernel


def _targets(X: Arrays, out: Sequence[Any] | None) -> list[np.ndarray]:
    planned = out[0] if out is not None else None
    given = planned if isinstance(planned, list) else [None] * len(X)
    return [np.empty_like(x) if to is None else to for x, to in zip(X, given, strict=True)]


def _applied(ufunc: np.ufunc, operands: tuple[Any, ...], out: np.ndarray) -> np.ndarray:
    arrays = [a for a in (*operands, out) if isinstance(a, np.ndarray)]
    if out.size <= BLOCK or not all(a.flags.c_contiguous for a in arrays):
        return np.asarray(ufunc(*operands, out=out))
    flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in (*operands, out)]

    def on_block(start: int, stop: int) -> None:
        *parts, to = [a[start:stop] if isinstance(a, np.ndarray) else a for a in flat]
        ufunc(*parts, out=to)

    for_blocks(out.size, BLOCK, on_block)
    return out


foreach_add, foreach_sub, foreach_mul = (_binary(f) for f in (np.add, np.subtract, np.multiply))
foreach_div, foreach_max = _binary(np.divide), _binary(np.maximum)
foreach_sqrt, foreach_abs, foreach_sign = (_unary(f) for f in (np.sqrt, np.absolute, np.sign))
