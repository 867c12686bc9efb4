"""The argument `act` of static.nn's functions and nn.BatchNorm: names of Paddle's operators, with their defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minigraph.errors import raise_unknown
from minigraph.errors.kinds import UNKNOWN_ATTR
from minigraph.program import Variable
from minigraph.program.builder import builder_of

from . import functional as F

OPERATORS = (
    "elu", "gelu", "leaky_relu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "softplus", "softsign", "tanh",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "hard_shrink": F.hardshrink, "hard_sigmoid": partial(F.hardsigmoid, slope=0.2), "hard_swish": F.hardswish,
    "logsigmoid": F.log_sigmoid, "mish": F.mish, "relu6": F.relu6, "selu": F.selu, "softshrink": F.softshrink,
    "swish": F.swish, "tanh_shrink": F.tanhshrink, "thresholded_relu": F.thresholded_relu,
}  # fmt: skip


def check_activation(call: str, act: str | None) -> None:
    if act is not None and act not in OPERATORS and act not in FUNCTIONS:
        raise_unknown(f"activation of {call}", act, (*OPERATORS, *FUNCTIONS), UNKNOWN_ATTR)


def activated(x: Variable, act: str | None, name: str) -> Variable:
    """x, or the activation `act` of it, in variables called after `name`."""
    if act is None:
        return x
    if act in OPERATORS:
        return builder_of(x).emit(act, x, name=f"{name}.tmp")
    return FUNCTIONS[act](x, name=name)
