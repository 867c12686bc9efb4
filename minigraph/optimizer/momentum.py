"""Gradient descent with a running direction: momentum, and the sign of one (Lion)."""

from __future__ import annotations

from typing import Any, ClassVar

from minigraph.errors.flags import as_flag
from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder

from .optimizer import Optimizer
from .settings import below_one, check_number


class Momentum(Optimizer):
    """v = momentum * v + g; p = p - lr * v, or p - lr * (g + momentum * v) with use_nesterov.

    rescale_grad      multiplies the clipped and regularized gradient (Paddle 2.6.2 ignores it on a CPU)
    use_multi_tensor  accepted as in Paddle; BuildStrategy.fuse_all_optimizer_ops decides here
    """

    op_type = "momentum"
    states: ClassVar = {"Velocity": "velocity"}
    hyper: ClassVar = {"momentum": below_one, "rescale_grad": check_number, "use_nesterov": as_flag}
    renamed: ClassVar = {"mu": "momentum"}

    def __init__(
        self, learning_rate: Any = 0.001, momentum: float = 0.9, parameters: Any = None, use_nesterov: bool = False,
        weight_decay: Any = None, grad_clip: Any = None, multi_precision: bool = False, rescale_grad: float = 1.0,
        use_multi_tensor: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, multi_precision, name,
            momentum=momentum, rescale_grad=rescale_grad, use_nesterov=use_nesterov,
        )  # fmt: skip

    def is_one_operator(self, param: Parameter) -> bool:
        return self.of(param, "rescale_grad") == 1

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        factor = self.of(param, "rescale_grad")
        super().append_update(g, param, g.scale(grad, scale=factor) if factor != 1 else grad, lr)


class Lion(Optimizer):
    """p = p * (1 - lr * weight_decay) - lr * sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g

    weight_decay is decoupled, as in AdamW.
    """

    op_type = "lion"
    states: ClassVar = {"Moment": "moment"}
    hyper: ClassVar = {"beta1": below_one, "beta2": below_one, "coeff": check_number}

    def __init__(
        self, learning_rate: Any = 0.0001, beta1: float = 0.9, beta2: float = 0.99, parameters: Any = None,
        weight_decay: float = 0.0, grad_clip: Any = None, multi_precision: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        coeff = check_number("weight_decay", weight_decay)
        super().__init__(
            learning_rate, parameters, None, grad_clip, multi_precision, name, beta1=beta1, beta2=beta2, coeff=coeff
        )
