"""Learning rate schedules: functions of the epoch, which `step()` counts.

    scheduler = mg.optimizer.lr.StepDecay(0.1, step_size=30)
    mg.optimizer.SGD(scheduler).minimize(loss)
    for epoch in range(90):
        exe.run(...)          # writes scheduler() into the learning rate first
        scheduler.step()
"""

from .counted import (
    autoincreased_step_counter,
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    piecewise_decay,
    polynomial_decay,
)
from .cycles import CosineAnnealingWarmRestarts, CyclicLR, LinearLR, MultiplicativeDecay, OneCycleLR
from .plateau import ReduceOnPlateau
from .schedules import (
    CosineAnnealingDecay,
    ExponentialDecay,
    InverseTimeDecay,
    LambdaDecay,
    LinearWarmup,
    LRScheduler,
    MultiStepDecay,
    NaturalExpDecay,
    NoamDecay,
    PiecewiseDecay,
    PolynomialDecay,
    StepDecay,
)

__all__ = [
    "CosineAnnealingDecay", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialDecay", "InverseTimeDecay",
    "LRScheduler", "LambdaDecay", "LinearLR", "LinearWarmup", "MultiStepDecay", "MultiplicativeDecay",
    "NaturalExpDecay", "NoamDecay", "OneCycleLR", "PiecewiseDecay", "PolynomialDecay", "ReduceOnPlateau", "StepDecay",
    "autoincreased_step_counter", "cosine_decay", "exponential_decay", "inverse_time_decay", "linear_lr_warmup",
    "natural_exp_decay", "noam_decay", "piecewise_decay", "polynomial_decay",
]  # fmt: skip
