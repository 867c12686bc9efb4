"""Parameter updates by the moments of the gradient: Adam and what came of it."""

from __future__ import annotations

import numpy as np

from .update import update


@update
def adam(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, Moment2Max=None,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, amsgrad: bool = False,
):  # fmt: skip
    """ParamOut = Param - LearningRate * m / (sqrt(v) + epsilon), m and v the moments without their bias:

    Moment1Out = beta1 * Moment1 + (1 - beta1) * Grad       m = Moment1Out / (1 - Beta1Pow)
    Moment2Out = beta2 * Moment2 + (1 - beta2) * Grad^2     v = Moment2Out / (1 - Beta2Pow)
    Beta1Pow starts at beta1, serves this step and is then multiplied by beta1. Beta2Pow does so with beta2.
    amsgrad  v = Moment2MaxOut / (1 - Beta2Pow) with Moment2MaxOut = max(Moment2Max, Moment2Out)
    Sources: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980;
    Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, arXiv:1904.09237.
    """
    moment1 = beta1 * Moment1 + (1 - beta1) * Grad
    moment2 = beta2 * Moment2 + (1 - beta2) * Grad**2
    most = np.maximum(Moment2Max, moment2) if Moment2Max is not None else None
    m = moment1 / (1 - Beta1Pow.item())
    v = (moment2 if most is None else most) / (1 - Beta2Pow.item())
    updated = Param - LearningRate.item() * m / (np.sqrt(v) + epsilon)
    return updated, moment1, moment2, Beta1Pow * beta1, Beta2Pow * beta2, most


def adam_inputs(rng, shape):
    """Inputs of adam after some steps: Moment2 is not negative, the powers lie below one."""
    p, g, m, v = (rng.normal(size=shape) for _ in range(4))
    return p, g, np.array([0.01]), m, abs(v), np.array([0.9**3]), np.array([0.999**3])


@adam.samples
def _(rng):
    yield adam_inputs(rng, (4, 3)), {}
    yield adam_inputs(rng, ()), {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3}
    inputs = adam_inputs(rng, (4, 3))
    yield (*inputs, abs(rng.normal(size=(4, 3)))), {"amsgrad": True}
    yield (*inputs, None, None, np.array([False]), np.array([0.5])), {}
    yield (*inputs, None, None, np.array([True]), np.array([0.5])), {}


@update
def adamw(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, Moment2Max=None,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
    coeff: float = 0.01, with_decay: bool = True, lr_ratio: float = 1.0, amsgrad: bool = False,
):  # fmt: skip
    """adam of Param * (1 - lr * coeff) with lr = LearningRate * lr_ratio; with_decay=False leaves the factor out.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """
    lr = LearningRate.item() * lr_ratio
    decayed = Param * (1 - lr * coeff) if with_decay else Param
    results = adam(
        decayed, Grad, np.asarray(lr), Moment1, Moment2, Beta1Pow, Beta2Pow, Moment2Max,
        beta1=beta1, beta2=beta2, epsilon=epsilon, amsgrad=amsgrad,
    )  # fmt: skip
    return results[:-1]  # without adam's MasterParamOut


@adamw.samples
def _(rng):
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1}
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1, "lr_ratio": 0.5}
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1, "with_decay": False}
    yield (*adam_inputs(rng, (4, 3)), abs(rng.normal(size=(4, 3)))), {"amsgrad": True}


@update
def adamax(
    Param, Grad, LearningRate, Moment, InfNorm, Beta1Pow,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
):  # fmt: skip
    """ParamOut = Param - LearningRate / (1 - Beta1Pow) * MomentOut / InfNormOut

    MomentOut = beta1 * Moment + (1 - beta1) * Grad; InfNormOut = max(|Grad|, beta2 * InfNorm + epsilon)
    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, section 7.1, arXiv:1412.6980.
    """
    moment = beta1 * Moment + (1 - beta1) * Grad
    norm = np.maximum(np.abs(Grad), beta2 * InfNorm + epsilon)
    updated = Param - LearningRate.item() / (1 - Beta1Pow.item()) * moment / norm
    return updated, moment, norm, Beta1Pow * beta1


@adamax.samples
def _(rng):
    p, g, m, n = rng.normal(size=(4, 4, 3))
    yield (p, g, np.array([0.1]), m, abs(n), np.array([0.9**3])), {}


@update
def lamb(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01,
    always_adapt: bool = False,
):  # fmt: skip
    """ParamOut = Param - LearningRate * ratio * r with r = m / (sqrt(v) + epsilon) + weight_decay * Param.

    m and v are those of adam; ratio = ||Param|| / ||r||, 1 where one of them is 0, and where there is no
    weight decay, unless always_adapt. The norms are those of whole parameters.
    Source: You and others, Large Batch Optimization for Deep Learning, arXiv:1904.00962.
    """
    moment1 = beta1 * Moment1 + (1 - beta1) * Grad
    moment2 = beta2 * Moment2 + (1 - beta2) * Grad**2
    m, v = moment1 / (1 - Beta1Pow.item()), moment2 / (1 - Beta2Pow.item())
    r = m / (np.sqrt(v) + epsilon) + weight_decay * Param
    ratio = 1.0
    if weight_decay > 0 or always_adapt:
        p_norm, r_norm = np.sqrt(np.sum(Param**2)), np.sqrt(np.sum(r**2))
        ratio = p_norm / r_norm if p_norm > 0 and r_norm > 0 else 1.0
    return Param - LearningRate.item() * ratio * r, moment1, moment2, Beta1Pow * beta1, Beta2Pow * beta2


@lamb.samples
def _(rng):
    yield adam_inputs(rng, (4, 3)), {}
    yield adam_inputs(rng, (4, 3)), {"weight_decay": 0.0}
    yield adam_inputs(rng, (5,)), {"weight_decay": 0.0, "always_adapt": True}
