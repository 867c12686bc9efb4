"""Parameter updates on a CPU: in place, block by block, spread over the cores.

A kernel gets the arrays of the Scope as `out` and updates them; where `out` is absent it updates
copies. The loops are machine code where numba is installed (`kernels/compiled.py`); NumPy runs one
pass per elementary operation, so a block is small enough to stay in cache between them, and large
enough that threads seldom wait for the interpreter lock. Each element is computed by the same
operations wherever blocks end, so results do not depend on the number of cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .compiled import compiled, elements
from .parallel import for_blocks

BLOCK = 196608  # elements
NORM_BLOCK = 8192  # elements that BLAS sums in the array's type: of longer ones it makes threads, whose sums differ

Out = Sequence[np.ndarray | None] | None


@compiled
def _sgd_loop(g, p, lr):
    for i in elements(g):
        p[i] = p[i] - g[i] * lr


@compiled
def _momentum_loop(g, p, v, lr, mu):
    for i in elements(g):
        v[i] = v[i] * mu + g[i]
        p[i] = p[i] - v[i] * lr


@compiled
def _nesterov_loop(g, p, v, lr, mu):
    for i in elements(g):
        v[i] = v[i] * mu + g[i]
        p[i] = p[i] - (g[i] + v[i] * mu) * lr


@compiled
def _adam_loop(g, p, m, v, beta1, rest1, beta2, rest2, epsilon, step, shrink):
    for i in elements(g):
        m[i] = m[i] * beta1 + g[i] * rest1
        v[i] = v[i] * beta2 + (g[i] * g[i]) * rest2
        p[i] = p[i] * shrink - m[i] / (np.sqrt(v[i]) + epsilon) * step


def sgd(Param: np.ndarray, Grad: np.ndarray, LearningRate: np.ndarray, *, out: Out = None) -> np.ndarray:
    """Param - LearningRate * Grad"""
    return _updated(_sgd_loop, Grad, [Param], out, LearningRate.item())[0]


def momentum(
    Param: np.ndarray, Grad: np.ndarray, Velocity: np.ndarray, LearningRate: np.ndarray,
    *, mu: float, use_nesterov: bool, out: Out = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Velocity = mu * Velocity + Grad; Param -= LearningRate * (Velocity, or Grad + mu * Velocity)"""
    loop = _nesterov_loop if use_nesterov else _momentum_loop
    return tuple(_updated(loop, Grad, [Param, Velocity], out, LearningRate.item(), mu))


def adam(
    Param: np.ndarray, Grad: np.ndarray, LearningRate: np.ndarray, Moment1: np.ndarray, Moment2: np.ndarray,
    Beta1Pow: np.ndarray, Beta2Pow: np.ndarray, *, beta1: float, beta2: float, epsilon: float, out: Out = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """One step of Adam with the bias corrections folded into its step size and epsilon."""
    arrays = (Param, Grad, Moment1, Moment2, Beta1Pow, Beta2Pow)
    return _adam(*arrays, LearningRate.item(), 1.0, beta1, beta2, epsilon, out)


def adamw(
    Param: np.ndarray, Grad: np.ndarray, LearningRate: np.ndarray, Moment1: np.ndarray, Moment2: np.ndarray,
    Beta1Pow: np.ndarray, Beta2Pow: np.ndarray, *, beta1: float, beta2: float, epsilon: float,
    coeff: float, with_decay: bool, lr_ratio: float, out: Out = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Param *= 1 - lr * coeff, then one step of Adam."""
    lr = LearningRate.item() * lr_ratio
    arrays = (Param, Grad, Moment1, Moment2, Beta1Pow, Beta2Pow)
    return _adam(*arrays, lr, 1 - lr * coeff if with_decay else 1.0, beta1, beta2, epsilon, out)


def _adam(
    Param: np.ndarray, Grad: np.ndarray, Moment1: np.ndarray, Moment2: np.ndarray,
    Beta1Pow: np.ndarray, Beta2Pow: np.ndarray,
    lr: float, shrink: float, beta1: float, beta2: float, epsilon: float, out: Out,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    correction = math.sqrt(1 - Beta2Pow.item())
    step, eps = lr * correction / (1 - Beta1Pow.item()), epsilon * correction
    numbers = (beta1, 1 - beta1, beta2, 1 - beta2, eps, step, shrink)
    p, m, v = _updated(_adam_loop, Grad, [Param, Moment1, Moment2], out[:3] if out else None, *numbers)
    b1, b2 = out[3:] if out else (None, None)
    return p, m, v, np.multiply(Beta1Pow, beta1, out=b1), np.multiply(Beta2Pow, beta2, out=b2)


def squared_l2_norm(X: np.ndarray) -> np.ndarray:
    """sum(X^2) without an array of squares; the sums of blocks are added in float64."""
    x = X.reshape(-1)
    blocks = (x[start : start + NORM_BLOCK] for start in range(0, x.size, NORM_BLOCK))
    return np.asarray(sum(float(np.dot(b, b)) for b in blocks), X.dtype)


def _updated(
    loop: Callable[..., None], Grad: np.ndarray, arrays: Sequence[np.ndarray], out: Out, *numbers: float
) -> list[np.ndarray]:
    """`loop(grad, *arrays, *numbers)` on all blocks of the arrays in `out`, of copies where there is none."""
    results = [_target(a, o) for a, o in zip(arrays, out or [None] * len(arrays), strict=True)]
    flat = [np.ascontiguousarray(a).reshape(-1) for a in (Grad, *results)]
    for_blocks(flat[0].size, BLOCK, lambda start, stop: loop(*[f[start:stop] for f in flat], *numbers))
    for result, f in zip(results, flat[1:], strict=True):
        if not result.flags.c_contiguous:  # then its flat form is a copy
            result[...] = f.reshape(result.shape)
    return results


def _target(array: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The array to update: `out` with the values of `array`."""
    if not isinstance(out, np.ndarray):  # absent, or a NumPy scalar
        return np.array(array)
    if out is not array:
        np.copyto(out, array)
    return out
