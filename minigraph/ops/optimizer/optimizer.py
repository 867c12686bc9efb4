"""Parameter updates without moments of Adam's kind, and the squared norms that gradient clipping needs.

The references are the plain formulas and return new arrays; the kernels update the arrays of the
Scope in place. `update` (update.py) adds the slots that all updates share, and the fused forms.
"""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import Arrays, op
from minigraph.types import TensorType

from .update import state_dtype, update


@update
def sgd(Param, Grad, LearningRate):
    """Param - LearningRate * Grad"""
    return Param - LearningRate.item() * Grad


@sgd.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([0.1])), {}
    yield (rng.normal(size=()), rng.normal(size=()), np.array([0.1])), {}
    yield (rng.normal(size=(0, 3)), rng.normal(size=(0, 3)), np.array([0.1])), {}
    some = (rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([0.1]), None)
    yield (*some, np.array([True]), np.array([0.5])), {}
    yield (*some, np.array([False]), np.array([0.5])), {}


@update
def momentum(Param, Grad, LearningRate, Velocity, *, mu: float = 0.9, use_nesterov: bool = False):
    """VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * VelocityOut.

    use_nesterov  ParamOut = Param - LearningRate * (Grad + mu * VelocityOut)
    """
    velocity = mu * Velocity + Grad
    direction = Grad + mu * velocity if use_nesterov else velocity
    return Param - LearningRate.item() * direction, velocity


@momentum.samples
def _(rng):
    for nesterov in (False, True):
        p, g, v = rng.normal(size=(3, 4, 3))
        yield (p, g, np.array([0.1]), v), {"mu": 0.8, "use_nesterov": nesterov}


@update
def adagrad(Param, Grad, LearningRate, Moment, *, epsilon: float = 1e-6):
    """MomentOut = Moment + Grad^2; ParamOut = Param - LearningRate * Grad / (sqrt(MomentOut) + epsilon).

    Source: Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12 (2011).
    """
    moment = Moment + Grad**2
    return Param - LearningRate.item() * Grad / (np.sqrt(moment) + epsilon), moment


@adagrad.samples
def _(rng):
    p, g, s = rng.normal(size=(3, 4, 3))
    yield (p, g, np.array([0.1]), abs(s)), {}


@update
def adadelta(
    Param, Grad, LearningRate, AvgSquaredGrad, AvgSquaredUpdate, *, rho: float = 0.95, epsilon: float = 1e-6
):  # fmt: skip
    """ParamOut = Param - LearningRate * u with u = Grad * sqrt((AvgSquaredUpdate + epsilon) / (a + epsilon)).

    AvgSquaredGradOut = a = rho * AvgSquaredGrad + (1 - rho) * Grad^2
    AvgSquaredUpdateOut = rho * AvgSquaredUpdate + (1 - rho) * u^2
    Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701 (there LearningRate is 1).
    """
    a = rho * AvgSquaredGrad + (1 - rho) * Grad**2
    u = Grad * np.sqrt((AvgSquaredUpdate + epsilon) / (a + epsilon))
    return Param - LearningRate.item() * u, a, rho * AvgSquaredUpdate + (1 - rho) * u**2


@adadelta.samples
def _(rng):
    p, g, a, d = rng.normal(size=(4, 4, 3))
    yield (p, g, np.array([0.1]), abs(a), abs(d)), {"rho": 0.9}


@update
def rmsprop(
    Param, Grad, LearningRate, MeanSquare, Moment, MeanGrad=None,
    *, decay: float = 0.95, epsilon: float = 1e-6, momentum: float = 0.0, centered: bool = False,
):  # fmt: skip
    """ParamOut = Param - MomentOut: a running mean of gradients divided by their running magnitude.

    MomentOut = momentum * Moment + LearningRate * Grad / sqrt(MeanSquareOut + epsilon)
    MeanSquareOut = decay * MeanSquare + (1 - decay) * Grad^2
    centered      subtracts MeanGradOut^2 under the root, MeanGradOut = decay * MeanGrad + (1 - decay) * Grad
    Source: Hinton, Neural Networks for Machine Learning, lecture 6.
    """
    square = decay * MeanSquare + (1 - decay) * Grad**2
    mean = decay * MeanGrad + (1 - decay) * Grad if MeanGrad is not None else None
    variance = square - mean**2 if mean is not None else square
    moment = momentum * Moment + LearningRate.item() * Grad / np.sqrt(variance + epsilon)
    return Param - moment, square, moment, mean


@rmsprop.samples
def _(rng):
    p, g, s, v, c = rng.normal(size=(5, 4, 3))
    yield (p, g, np.array([0.1]), abs(s), v), {"decay": 0.9, "momentum": 0.5}
    yield (p, g, np.array([0.1]), c**2 + abs(s), v, c), {"momentum": 0.5, "centered": True}


@update
def lion(
    Param, Grad, LearningRate, Moment, *, beta1: float = 0.9, beta2: float = 0.99, coeff: float = 0.0
):  # fmt: skip
    """ParamOut = Param * (1 - LearningRate * coeff) - LearningRate * sign(beta1 * Moment + (1 - beta1) * Grad).

    MomentOut = beta2 * Moment + (1 - beta2) * Grad
    Source: Chen and others, Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675.
    """
    lr = LearningRate.item()
    direction = np.sign(beta1 * Moment + (1 - beta1) * Grad)
    return Param * (1 - lr * coeff) - lr * direction, beta2 * Moment + (1 - beta2) * Grad


@lion.samples
def _(rng):
    p, g, m = rng.normal(size=(3, 4, 3))
    yield (p, g, np.array([0.1]), m), {"coeff": 0.1}


@op(cpu="minigraph.kernels.cpu.optimizer:squared_l2_norm", gpu="optimizer.optimizer")
def squared_l2_norm(X):
    """The sum of X^2 over all elements, a scalar; float32 for 16-bit X, whose squares would overflow."""
    return np.sum(np.square(X))


@squared_l2_norm.infer
def _(X):
    require(X.is_float, f"X must be a float, is {X}", DTypeError)
    return TensorType((), state_dtype(X.dtype))


@squared_l2_norm.grad
def _(g, X, Out_grad):
    own, wide = X.type.dtype, Out_grad.type.dtype
    if own == wide:
        return g.scale(g.elementwise_mul(X, Out_grad), scale=2.0)
    return g.cast(g.scale(g.elementwise_mul(g.cast(X, dtype=wide), Out_grad), scale=2.0), dtype=own)


@squared_l2_norm.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {}


@op(cpu="minigraph.kernels.cpu.optimizer:foreach_squared_l2_norm", gpu="optimizer.optimizer")
def foreach_squared_l2_norm(X: Arrays):
    """The sum of squared_l2_norm over a list of arrays of one type."""
    return sum(np.sum(np.square(x)) for x in X)


@foreach_squared_l2_norm.infer
def _(X):
    for x in X:
        require(x.is_float, f"X must hold floats, holds {x}", DTypeError)
        require(x.dtype == X[0].dtype, f"X holds {X[0].dtype} and {x.dtype}", MIXED_TYPES)
    return TensorType((), state_dtype(X[0].dtype))


@foreach_squared_l2_norm.samples
def _(rng):
    yield ([rng.normal(size=(4, 3)), rng.normal(size=()), rng.normal(size=(0, 3)), rng.normal(size=5)],), {}
