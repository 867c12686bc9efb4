"""Optimizers around optimizers: values that are computed again, gradients of several batches."""

from .recompute import RecomputeOptimizer

__all__ = ["RecomputeOptimizer"]
