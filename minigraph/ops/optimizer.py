"""Parameter updates, and the squared norm that gradient clipping needs.

The references are the plain formulas and return new arrays; the kernels update the arrays of the
Scope in place. Hyperparameters are exact doubles. The learning rate is a variable with one element.
The powers of beta are float64 for every parameter: 1 - Beta2Pow would lose five digits in float32.
"""

from __future__ import annotations

import numpy as np

from ..errors import DTypeError, require
from ..opdef import op
from ..types import TensorType, bfloat16, float16, float32, float64

UPDATE = frozenset({"optimizer", "nondifferentiable"})
ADAM_OUTPUTS = "ParamOut, Moment1Out, Moment2Out, Beta1PowOut, Beta2PowOut"
ADAM_INPLACE = {slot.strip(): slot.strip().removesuffix("Out") for slot in ADAM_OUTPUTS.split(",")}


def state_dtype(param: np.dtype) -> np.dtype:
    """The type of a parameter's states: its own, float32 for 16-bit floats."""
    return float32 if param in (float16, bfloat16) else param


def check_update(Param: TensorType, Grad: TensorType, LearningRate: TensorType, **states: TensorType) -> None:
    """Gradient and states fit the parameter, the learning rate is one number."""
    require(Param.is_float, f"Param is {Param}, only floats can be updated", DTypeError)
    require(Grad.dtype == Param.dtype, f"Param is {Param.dtype}, Grad is {Grad.dtype}", DTypeError, "cast Grad")
    require(Param.accepts(Grad), f"Param is {Param}, Grad is {Grad}")
    require(LearningRate.is_float, f"LearningRate must be a float, is {LearningRate}", DTypeError)
    require(LearningRate.size == 1, f"LearningRate must have one element, is {LearningRate}")
    wanted = Param.with_dtype(state_dtype(Param.dtype))
    for slot, state in states.items():
        require(state.dtype == wanted.dtype, f"{slot} must be {wanted.dtype}, is {state.dtype}", DTypeError)
        require(wanted.accepts(state), f"{slot} must be {wanted}, is {state}")


def check_powers(**powers: TensorType) -> None:
    """The powers of beta are single float64 numbers."""
    for slot, power in powers.items():
        require(power.dtype == float64, f"{slot} must be float64, is {power.dtype}", DTypeError)
        require(power.size == 1, f"{slot} must have one element, is {power}")


@op("ParamOut", traits=UPDATE, inplace={"ParamOut": "Param"}, cpu="minigraph.kernels.optimizer:sgd", gpu="optimizer")
def sgd(Param, Grad, LearningRate):
    """Param - LearningRate * Grad"""
    return Param - LearningRate.item() * Grad


@sgd.infer
def _(Param, Grad, LearningRate):
    check_update(Param, Grad, LearningRate)
    return Param


@sgd.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([0.1])), {}
    yield (rng.normal(size=()), rng.normal(size=()), np.array([0.1])), {}
    yield (rng.normal(size=(0, 3)), rng.normal(size=(0, 3)), np.array([0.1])), {}


@op(
    "ParamOut, VelocityOut", traits=UPDATE, inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
    cpu="minigraph.kernels.optimizer:momentum", gpu="optimizer",
)  # fmt: skip
def momentum(Param, Grad, Velocity, LearningRate, *, mu: float = 0.9, use_nesterov: bool = False):
    """VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * VelocityOut.

    use_nesterov  ParamOut = Param - LearningRate * (Grad + mu * VelocityOut)
    """
    velocity = mu * Velocity + Grad
    direction = Grad + mu * velocity if use_nesterov else velocity
    return Param - LearningRate.item() * direction, velocity


@momentum.infer
def _(Param, Grad, Velocity, LearningRate, *, mu, use_nesterov):
    check_update(Param, Grad, LearningRate, Velocity=Velocity)
    return Param, Velocity


@momentum.samples
def _(rng):
    for nesterov in (False, True):
        yield (*rng.normal(size=(3, 4, 3)), np.array([0.1])), {"mu": 0.8, "use_nesterov": nesterov}


@op(ADAM_OUTPUTS, traits=UPDATE, inplace=ADAM_INPLACE, cpu="minigraph.kernels.optimizer:adam", gpu="optimizer")
def adam(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
):  # fmt: skip
    """ParamOut = Param - LearningRate * m / (sqrt(v) + epsilon), m and v the moments without their bias:

    Moment1Out = beta1 * Moment1 + (1 - beta1) * Grad       m = Moment1Out / (1 - Beta1Pow)
    Moment2Out = beta2 * Moment2 + (1 - beta2) * Grad^2     v = Moment2Out / (1 - Beta2Pow)
    Beta1Pow starts at beta1, serves this step and is multiplied by beta1 then; Beta2Pow likewise.
    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980.
    """
    moment1 = beta1 * Moment1 + (1 - beta1) * Grad
    moment2 = beta2 * Moment2 + (1 - beta2) * Grad**2
    m = moment1 / (1 - Beta1Pow.item())
    v = moment2 / (1 - Beta2Pow.item())
    updated = Param - LearningRate.item() * m / (np.sqrt(v) + epsilon)
    return updated, moment1, moment2, Beta1Pow * beta1, Beta2Pow * beta2


@adam.infer
def _(Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, *, beta1, beta2, epsilon):
    check_update(Param, Grad, LearningRate, Moment1=Moment1, Moment2=Moment2)
    check_powers(Beta1Pow=Beta1Pow, Beta2Pow=Beta2Pow)
    return Param, Moment1, Moment2, Beta1Pow, Beta2Pow


def adam_inputs(rng, shape):
    """Inputs of adam after some steps: Moment2 is not negative, the powers lie below one."""
    p, g, m, v = (rng.normal(size=shape) for _ in range(4))
    return p, g, np.array([0.01]), m, abs(v), np.array([0.9**3]), np.array([0.999**3])


@adam.samples
def _(rng):
    yield adam_inputs(rng, (4, 3)), {}
    yield adam_inputs(rng, ()), {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3}


@op(ADAM_OUTPUTS, traits=UPDATE, inplace=ADAM_INPLACE, cpu="minigraph.kernels.optimizer:adamw", gpu="optimizer")
def adamw(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
    coeff: float = 0.01, with_decay: bool = True, lr_ratio: float = 1.0,
):  # fmt: skip
    """adam of Param * (1 - lr * coeff) with lr = LearningRate * lr_ratio; with_decay=False leaves the factor out.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """
    lr = LearningRate.item() * lr_ratio
    decayed = Param * (1 - lr * coeff) if with_decay else Param
    return adam(
        decayed, Grad, np.asarray(lr), Moment1, Moment2, Beta1Pow, Beta2Pow,
        beta1=beta1, beta2=beta2, epsilon=epsilon,
    )  # fmt: skip


@adamw.infer
def _(
    Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow,
    *, beta1, beta2, epsilon, coeff, with_decay, lr_ratio,
):  # fmt: skip
    check_update(Param, Grad, LearningRate, Moment1=Moment1, Moment2=Moment2)
    check_powers(Beta1Pow=Beta1Pow, Beta2Pow=Beta2Pow)
    return Param, Moment1, Moment2, Beta1Pow, Beta2Pow


@adamw.samples
def _(rng):
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1}
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1, "lr_ratio": 0.5}
    yield adam_inputs(rng, (4, 3)), {"coeff": 0.1, "with_decay": False}


@op(traits={"nondifferentiable"}, cpu="minigraph.kernels.optimizer:squared_l2_norm", gpu="optimizer")
def squared_l2_norm(X):
    """The sum of X^2 over all elements, a scalar; float32 for 16-bit X, whose squares would overflow."""
    return np.sum(np.square(X))


@squared_l2_norm.infer
def _(X):
    require(X.is_float, f"X must be a float, is {X}", DTypeError)
    return TensorType((), state_dtype(X.dtype))


@squared_l2_norm.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {}
