"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from ..builder import Builder
from ..program import Parameter, Variable
from .optimizer import Optimizer


class SGD(Optimizer):
    """p = p - lr * g"""

    def __init__(
        self, learning_rate: Any = 0.001, parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None,
        multi_precision: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        g.sgd(param, grad, lr, out={"ParamOut": param})
