"""What Paddle keeps apart: optimizers around optimizers."""

from . import optimizer

__all__ = ["optimizer"]
