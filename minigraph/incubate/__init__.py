"""What Paddle keeps apart: optimizers around optimizers."""

from . import optimizer
from .identity import identity_loss
from .optimizer import LookAhead, ModelAverage

__all__ = ["LookAhead", "ModelAverage", "identity_loss", "optimizer"]
