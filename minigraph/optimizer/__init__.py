"""Optimizers: they append gradient, clipping, weight decay and update operators to a Program."""

from . import lr
from .adam import Adam, Adamax, AdamW, Lamb
from .adaptive import Adadelta, Adagrad, RMSProp
from .momentum import Lion, Momentum
from .optimizer import Optimizer
from .sgd import SGD

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Lion", "Momentum", "Optimizer", "RMSProp", "lr",
]  # fmt: skip
