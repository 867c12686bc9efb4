"""Activation functions."""

from __future__ import annotations

from typing import Any

from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor import cast, tanh
from minigraph.tensor.arguments import emit, variable


def relu(x: Variable, name: str | None = None) -> Variable:
    """max(x, 0)"""
    return emit("relu", "relu", variable(x, "relu"), name=name)


def gelu(x: Variable, approximate: bool = False, name: str | None = None) -> Variable:
    """x * Phi(x), Phi the normal distribution function; approximate=True uses the tanh form."""
    return emit("gelu", "gelu", variable(x, "gelu"), approximate=approximate, name=name)


def silu(x: Variable, name: str | None = None) -> Variable:
    """x * sigmoid(x)"""
    return emit("silu", "silu", variable(x, "silu"), name=name)


def sigmoid(x: Variable, name: str | None = None) -> Variable:
    """1 / (1 + exp(-x))"""
    return emit("sigmoid", "sigmoid", variable(x, "sigmoid"), name=name)


def leaky_relu(x: Variable, negative_slope: float = 0.01, name: str | None = None) -> Variable:
    """x where x > 0, else negative_slope * x."""
    return emit("leaky_relu", "leaky_relu", variable(x, "leaky_relu"), alpha=negative_slope, name=name)


def softplus(x: Variable, name: str | None = None) -> Variable:
    """log(1 + exp(x))"""
    return emit("softplus", "softplus", variable(x, "softplus"), name=name)


@whole
def softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """exp(x) / sum(exp(x)) along `axis`; dtype: cast x first."""
    x = variable(x, "softmax")
    return emit("softmax", "softmax", x if dtype is None else cast(x, dtype), axis=axis, name=name)


@whole
def log_softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """log(softmax(x)) without the loss of a logarithm of small numbers; dtype: cast x first."""
    x = variable(x, "log_softmax")
    return emit("log_softmax", "log_softmax", x if dtype is None else cast(x, dtype), axis=axis, name=name)


__all__ = ["gelu", "leaky_relu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "softplus", "tanh"]
