"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from .optimizer import Optimizer


class SGD(Optimizer):
    """p = p - lr * g"""

    op_type = "sgd"

    def __init__(
        self, learning_rate: Any = 0.001, parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None,
        multi_precision: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)
