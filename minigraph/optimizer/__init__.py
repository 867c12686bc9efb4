"""Optimizers: they append gradient, clipping, weight decay and update operators to a Program."""

from . import lr
from .adam import Adam, AdamW
from .momentum import Momentum
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Momentum", "Optimizer", "lr"]
