"""Adagrad, Adadelta, RMSProp: gradients divided by their past magnitude, without a running mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from minigraph.errors.flags import as_flag
from minigraph.program import Parameter

from .optimizer import Optimizer
from .settings import below_one, check_number, positive


class Adagrad(Optimizer):
    """s = s + g^2; p = p - lr * g / (sqrt(s) + epsilon); s begins as initial_accumulator_value."""

    op_type = "adagrad"
    states: ClassVar = {"Moment": "moment"}
    hyper: ClassVar = {"epsilon": positive}

    def __init__(
        self, learning_rate: Any, epsilon: float = 1e-6, parameters: Any = None, weight_decay: Any = None,
        grad_clip: Any = None, name: str | None = None, initial_accumulator_value: float = 0.0,
        multi_precision: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name, epsilon=epsilon)
        self.initial = check_number("initial_accumulator_value", initial_accumulator_value)


class Adadelta(Optimizer):
    """a = rho a + (1 - rho) g^2; u = g sqrt((d + epsilon) / (a + epsilon)); d = rho d + (1 - rho) u^2; p = p - lr u"""

    op_type = "adadelta"
    states: ClassVar = {"AvgSquaredGrad": "_avg_squared_grad", "AvgSquaredUpdate": "_avg_squared_update"}
    hyper: ClassVar = {"epsilon": positive, "rho": below_one}

    def __init__(
        self, learning_rate: Any = 0.001, epsilon: float = 1e-6, rho: float = 0.95, parameters: Any = None,
        weight_decay: Any = None, grad_clip: Any = None, name: str | None = None, multi_precision: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, multi_precision, name, epsilon=epsilon, rho=rho
        )


class RMSProp(Optimizer):
    """s = rho s + (1 - rho) g^2; v = momentum v + lr g / sqrt(s + epsilon); p = p - v

    centered  s - c^2 in place of s under the root, c = rho c + (1 - rho) g
    """

    op_type = "rmsprop"
    states: ClassVar = {"MeanSquare": "mean_square", "Moment": "momentum", "MeanGrad": "mean_grad"}
    hyper: ClassVar = {"rho": below_one, "epsilon": positive, "momentum": below_one, "centered": as_flag}
    renamed: ClassVar = {"decay": "rho"}

    def __init__(
        self, learning_rate: Any, rho: float = 0.95, epsilon: float = 1e-6, momentum: float = 0.0,
        centered: bool = False, parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None,
        name: str | None = None, multi_precision: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, multi_precision, name,
            rho=rho, epsilon=epsilon, momentum=momentum, centered=centered,
        )  # fmt: skip

    def wanted_states(self, param: Parameter) -> Mapping[str, str]:
        return {s: n for s, n in self.states.items() if s != "MeanGrad" or self.of(param, "centered")}
