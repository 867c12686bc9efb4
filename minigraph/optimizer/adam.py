"""Adam and its relatives: steps along a running mean of gradients, divided by their running magnitude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from minigraph.errors import require
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import NOT_OFFERED
from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder
from minigraph.types import float32, float64

from .lazy_rows import named_rows
from .optimizer import Optimizer
from .settings import below_one, check_number, function, positive
from .updates import new_states
from .variable_betas import append_step, or_variable

BETAS = {"beta1": below_one, "beta2": below_one, "epsilon": positive}
MAY_BE_VARIABLES = {name: or_variable(check) for name, check in BETAS.items()}
MOMENTS = {"Moment1": "moment1", "Moment2": "moment2"}
POWERS = {"Beta1Pow": ("beta1_pow_acc", "beta1"), "Beta2Pow": ("beta2_pow_acc", "beta2")}


class Adam(Optimizer):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p -= lr m' / (sqrt(v') + epsilon)

    with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t). weight_decay is added to the gradient (L2).
    amsgrad                 the largest v so far in place of v
    beta1, beta2, epsilon   also float Variables of one element
    lazy_mode               rows of a table that no id of this run names stay, as do their moments; of tables that
                            embedding(sparse=True) alone reads, others are updated whole
    use_multi_tensor is accepted and changes no value.
    """

    op_type = "adam"
    powers = POWERS
    hyper: ClassVar = {**MAY_BE_VARIABLES, "amsgrad": as_flag}
    states: ClassVar = {**MOMENTS, "Moment2Max": "moment2_max"}

    def __init__(
        self, learning_rate: Any = 0.001, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8,
        parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None, lazy_mode: bool = False,
        multi_precision: bool = False, use_multi_tensor: bool = False, name: str | None = None, amsgrad: bool = False,
        **hyper: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, multi_precision, name,
            beta1=beta1, beta2=beta2, epsilon=epsilon, amsgrad=amsgrad, **hyper,
        )  # fmt: skip
        numbers = [beta1, beta2, epsilon, *(n for group in self._groups.values() for n in group.values())]
        self._varies = any(isinstance(n, Variable) for n in numbers)
        self._lazy_mode = as_flag("lazy_mode", lazy_mode)

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        rows = named_rows(g, param) if self._lazy_mode else None
        if not self._varies and rows is None:
            return super().append_update(g, param, grad, lr)
        numbers = {name: self.of(param, name) for name in BETAS}
        plain = param.dtype in (float32, float64) and not self._shared.flags and not self.of(param, "amsgrad")
        what = "betas that are variables go" if self._varies else "lazy_mode of a sparse table goes"
        require(plain, f"{what} with float32 and float64, without amsgrad, loss scaling and merged gradients",
                NOT_OFFERED, "betas that are numbers, lazy_mode=False")  # fmt: skip
        attrs = self.attrs(param)
        ratio = attrs.get("lr_ratio", 1.0)
        rate = lr if ratio == 1.0 else g.scale(lr, scale=ratio)
        decay = attrs["coeff"] if attrs.get("with_decay") else 0.0
        append_step(g, param, grad, rate, new_states(self, param), numbers, decay, rows)

    def is_one_operator(self, param: Parameter) -> bool:
        return not self._varies and not (self._lazy_mode and param.sparse)

    def wanted_states(self, param: Parameter) -> Mapping[str, str]:
        return {s: n for s, n in self.states.items() if s != "Moment2Max" or self.of(param, "amsgrad")}

    def looks_at_groups_only(self) -> bool:
        return True


class AdamW(Adam):
    """Adam after p = p * (1 - lr * weight_decay): the decay does not pass through the moments.

    lr_ratio               function of a Parameter: its factor on the learning rate
    apply_decay_param_fun  function of a parameter's name: whether it decays; all do where it is None
    """

    op_type = "adamw"
    hyper: ClassVar = {**Adam.hyper, "coeff": check_number}

    def __init__(
        self, learning_rate: Any = 0.001, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8,
        parameters: Any = None, weight_decay: float = 0.01, lr_ratio: Callable[[Parameter], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None, grad_clip: Any = None, lazy_mode: bool = False,
        multi_precision: bool = False, name: str | None = None, amsgrad: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, None, grad_clip, lazy_mode, multi_precision, name=name,
            amsgrad=amsgrad, coeff=check_number("weight_decay", weight_decay),
        )  # fmt: skip
        self.lr_ratio = function("lr_ratio", lr_ratio)
        self.apply_decay_param_fun = function("apply_decay_param_fun", apply_decay_param_fun)

    def looks_at_groups_only(self) -> bool:
        return self.lr_ratio is None and self.apply_decay_param_fun is None

    def attrs(self, param: Parameter) -> dict[str, Any]:
        ratio = check_number("lr_ratio", self.lr_ratio(param)) if self.lr_ratio else 1.0
        decays = self.apply_decay_param_fun is None or bool(self.apply_decay_param_fun(param.name))
        attrs = super().attrs(param)
        attrs["with_decay"], attrs["lr_ratio"] = decays, ratio
        return attrs


class Adamax(Optimizer):
    """m = beta1 m + (1 - beta1) g;  n = max(|g|, beta2 n + epsilon);  p = p - lr / (1 - beta1^t) * m / n"""

    op_type = "adamax"
    hyper = BETAS
    states: ClassVar = {"Moment": "moment", "InfNorm": "inf_norm"}
    powers: ClassVar = {"Beta1Pow": POWERS["Beta1Pow"]}

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None, name: str | None = None,
        multi_precision: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, multi_precision, name,
            beta1=beta1, beta2=beta2, epsilon=epsilon,
        )  # fmt: skip


class Lamb(Optimizer):
    """p = p - lr * (||p|| / ||r||) * r with r = m' / (sqrt(v') + epsilon) + lamb_weight_decay * p

    and m', v' as in Adam. The ratio is 1 where one of the norms is 0, and where there is no decay, unless always_adapt.
    exclude_from_weight_decay_fn  function of a Parameter: whether it does not decay
    """

    op_type = "lamb"
    states = MOMENTS
    powers = POWERS
    hyper: ClassVar = {**BETAS, "lamb_weight_decay": check_number, "always_adapt": as_flag}
    renamed: ClassVar = {"weight_decay": "lamb_weight_decay"}

    def __init__(
        self, learning_rate: Any = 0.001, lamb_weight_decay: float = 0.01, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-6, parameters: Any = None, grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None, multi_precision: bool = False,
        always_adapt: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            learning_rate, parameters, None, grad_clip, multi_precision, name, beta1=beta1, beta2=beta2,
            epsilon=epsilon, lamb_weight_decay=lamb_weight_decay, always_adapt=always_adapt,
        )  # fmt: skip
        self.exclude_from_weight_decay_fn = function("exclude_from_weight_decay_fn", exclude_from_weight_decay_fn)

    def attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = self.exclude_from_weight_decay_fn is not None and self.exclude_from_weight_decay_fn(param)
        return super().attrs(param) | ({"weight_decay": 0.0} if excluded else {})
