"""Adam and AdamW: steps divided by the running magnitude of each gradient element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..builder import Builder
from ..errors import AttrError, require
from ..program import Parameter, Variable
from ..types import float64, tensor_type
from .optimizer import Optimizer, check_number


class Adam(Optimizer):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p -= lr m' / (sqrt(v') + epsilon)

    with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t). weight_decay is added to the gradient (L2).
    lazy_mode and use_multi_tensor are accepted as in Paddle: they concern sparse gradients and
    launches on a GPU, and change no value.
    """

    op_type = "adam"

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None, lazy_mode: bool = False,
        multi_precision: bool = False, use_multi_tensor: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, multi_precision, name)
        self.beta1 = check_number("beta1", beta1, below=1)
        self.beta2 = check_number("beta2", beta2, below=1)
        self.epsilon = check_number("epsilon", epsilon)
        require(self.epsilon > 0, f"epsilon must be > 0, is {epsilon!r}", AttrError)

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        power = tensor_type((1,), float64)
        states = {
            "Moment1": self.state(param, "moment1"),
            "Moment2": self.state(param, "moment2"),
            "Beta1Pow": self.state(param, "beta1_pow_acc", self.beta1, power),
            "Beta2Pow": self.state(param, "beta2_pow_acc", self.beta2, power),
        }
        g.emit(
            self.op_type, param, grad, lr, **states, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon,
            **self.decay(param), out={"ParamOut": param, **{f"{slot}Out": v for slot, v in states.items()}},
        )  # fmt: skip

    def decay(self, param: Parameter) -> dict[str, Any]:
        """Further attributes of a parameter's update."""
        return {}


class AdamW(Adam):
    """Adam after p = p * (1 - lr * weight_decay): the decay does not pass through the moments.

    lr_ratio               function of a Parameter: its factor on the learning rate
    apply_decay_param_fun  function of a parameter's name: whether it decays; all do where it is None
    """

    op_type = "adamw"

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        parameters: Any = None, weight_decay: float = 0.01, lr_ratio: Callable[[Parameter], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None, grad_clip: Any = None, lazy_mode: bool = False,
        multi_precision: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, None, grad_clip, lazy_mode, multi_precision, name=name
        )
        self.coeff = check_number("weight_decay", weight_decay)
        for what, function in (("lr_ratio", lr_ratio), ("apply_decay_param_fun", apply_decay_param_fun)):
            require(function is None or callable(function), f"{what} must be a function, is {function!r}", AttrError)
        self.lr_ratio, self.apply_decay_param_fun = lr_ratio, apply_decay_param_fun

    def decay(self, param: Parameter) -> dict[str, Any]:
        ratio = check_number("lr_ratio", self.lr_ratio(param)) if self.lr_ratio else 1.0
        decays = self.apply_decay_param_fun is None or bool(self.apply_decay_param_fun(param.name))
        return {"coeff": self.coeff, "with_decay": decays, "lr_ratio": ratio}
