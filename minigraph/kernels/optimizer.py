"""Parameter updates on a CPU: in place, block by block, spread over the cores.

A kernel gets the arrays of the Scope as `out` and updates them; where `out` is absent it updates
copies. NumPy runs one loop per elementary operation, so a block is small enough to stay in cache
between them, and large enough that threads seldom wait for the interpreter lock (with blocks below
64 Ki elements two threads were measured to be slower than one). Each element is computed by the
same operations wherever blocks end, so results do not depend on the number of cores.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import numpy as np

from .parallel import for_blocks

BLOCK = 196608  # elements
NORM_BLOCK = 8192  # elements that BLAS sums in the array's type: of longer ones it makes threads, whose sums differ

Out = Sequence[np.ndarray | None] | None
_thread = threading.local()


def sgd(Param: np.ndarray, Grad: np.ndarray, LearningRate: np.ndarray, *, out: Out = None) -> np.ndarray:
    """Param - LearningRate * Grad"""
    lr = LearningRate.item()

    def update(t: np.ndarray, g: np.ndarray, p: np.ndarray) -> None:
        np.multiply(g, lr, out=t)
        np.subtract(p, t, out=p)

    return _updated(update, Grad, [Param], out)[0]


def momentum(
    Param: np.ndarray, Grad: np.ndarray, Velocity: np.ndarray, LearningRate: np.ndarray,
    *, mu: float, use_nesterov: bool, out: Out = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Velocity = mu * Velocity + Grad; Param -= LearningRate * (Velocity, or Grad + mu * Velocity)"""
    lr = LearningRate.item()

    def update(t: np.ndarray, g: np.ndarray, p: np.ndarray, v: np.ndarray) -> None:
        np.multiply(v, mu, out=v)
        np.add(v, g, out=v)
        if use_nesterov:
            np.multiply(v, mu, out=t)
            np.add(g, t, out=t)
            np.multiply(t, lr, out=t)
        else:
            np.multiply(v, lr, out=t)
        np.subtract(p, t, out=p)

    return tuple(_updated(update, Grad, [Param, Velocity], out))


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

    def update(t: np.ndarray, g: np.ndarray, p: np.ndarray, m: np.ndarray, v: np.ndarray) -> None:
        np.multiply(g, 1 - beta1, out=t)
        np.multiply(m, beta1, out=m)
        np.add(m, t, out=m)
        np.square(g, out=t)
        np.multiply(t, 1 - beta2, out=t)
        np.multiply(v, beta2, out=v)
        np.add(v, t, out=v)
        np.sqrt(v, out=t)
        np.add(t, eps, out=t)
        np.divide(m, t, out=t)
        np.multiply(t, step, out=t)
        if shrink != 1:
            np.multiply(p, shrink, out=p)
        np.subtract(p, t, out=p)

    p, m, v = _updated(update, Grad, [Param, Moment1, Moment2], out[:3] if out else None)
    b1, b2 = out[3:] if out else (None, None)
    return p, m, v, np.multiply(Beta1Pow, beta1, out=b1), np.multiply(Beta2Pow, beta2, out=b2)


def squared_l2_norm(X: np.ndarray) -> np.ndarray:
    """sum(X^2) without an array of squares; the sums of blocks are added in float64."""
    x = X.reshape(-1)
    blocks = (x[start : start + NORM_BLOCK] for start in range(0, x.size, NORM_BLOCK))
    return np.asarray(sum(float(np.dot(b, b)) for b in blocks), X.dtype)


def _updated(
    update: Callable[..., None], Grad: np.ndarray, arrays: Sequence[np.ndarray], out: Out
) -> list[np.ndarray]:
    """`update(scratch, grad, *arrays)` on all blocks of the arrays in `out`, of copies where there is none."""
    results = [_target(a, o) for a, o in zip(arrays, out or [None] * len(arrays), strict=True)]
    grad, flat = np.reshape(Grad, -1), [r.reshape(-1) for r in results]

    def on_block(start: int, stop: int) -> None:
        scratch = _scratch(grad.dtype)[: stop - start]
        update(scratch, grad[start:stop], *[f[start:stop] for f in flat])

    for_blocks(grad.size, BLOCK, on_block)
    for result, f in zip(results, flat, strict=True):
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


def _scratch(dtype: np.dtype) -> np.ndarray:
    """This thread's array for intermediate values."""
    found = _thread.__dict__.get(dtype.char)
    if found is None:
        found = _thread.__dict__[dtype.char] = np.empty(BLOCK, dtype)
    return found
