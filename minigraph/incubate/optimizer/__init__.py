"""Optimizers around optimizers: values that are computed again, gradients and weights of several runs."""

from .gradient_merge import GradientMergeOptimizer
from .look_ahead import LookAhead
from .model_average import ModelAverage
from .recompute import RecomputeOptimizer

__all__ = ["GradientMergeOptimizer", "LookAhead", "ModelAverage", "RecomputeOptimizer"]
