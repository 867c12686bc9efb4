"""Gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from ..builder import Builder
from ..errors import AttrError, require
from ..program import Parameter, Variable
from .optimizer import Optimizer, check_number


class Momentum(Optimizer):
    """v = momentum * v + g; p = p - lr * v, or p - lr * (g + momentum * v) with use_nesterov.

    rescale_grad      multiplies the clipped and regularized gradient (Paddle 2.6.2 ignores it on a CPU)
    use_multi_tensor  changes nothing on one CPU; accepted as in Paddle
    """

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, parameters: Any = None, use_nesterov: bool = False,
        weight_decay: Any = None, grad_clip: Any = None, multi_precision: bool = False, rescale_grad: float = 1.0,
        use_multi_tensor: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)
        self.momentum = check_number("momentum", momentum, below=1)
        self.rescale_grad = check_number("rescale_grad", rescale_grad)
        require(isinstance(use_nesterov, bool), f"use_nesterov must be a bool, is {use_nesterov!r}", AttrError)
        self.use_nesterov = use_nesterov

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        if self.rescale_grad != 1:
            grad = g.scale(grad, scale=self.rescale_grad)
        velocity = self.state(param, "velocity")
        g.momentum(
            param, grad, lr, velocity, mu=self.momentum, use_nesterov=self.use_nesterov,
            out={"ParamOut": param, "VelocityOut": velocity},
        )  # fmt: skip
