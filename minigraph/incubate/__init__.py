"""What Paddle keeps apart: optimizers around optimizers."""

from . import optimizer
from .identity import identity_loss

__all__ = ["identity_loss", "optimizer"]
