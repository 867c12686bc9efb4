"""Optimizers around optimizers: values that are computed again, gradients of several batches."""

from .gradient_merge import GradientMergeOptimizer
from .recompute import RecomputeOptimizer

__all__ = ["GradientMergeOptimizer", "RecomputeOptimizer"]
