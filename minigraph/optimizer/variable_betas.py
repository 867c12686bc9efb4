"""Adam whose betas or epsilon are Variables, or of some rows: its formula in plain operators, then a step of sgd.

The operator `adam` has its betas as attributes, and updates all of a parameter. Betas are Variables where a program
changes them, as a warm-up of beta1 does. What is computed is the same, with one operator for each step of the formula.
"""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder
from minigraph.types import FLOATS, float64

from .settings import Check

FIRST_POWERS = {"beta1": 0.9, "beta2": 0.999}  # with which Paddle begins, whatever the Variable holds


def or_variable(check: Check) -> Check:
    """The check of a number that may also be a float Variable of one element."""

    def checked(name: str, value: Any) -> Any:
        if not isinstance(value, Variable):
            return check(name, value)
        fits = value.dtype in FLOATS and value.type.is_static and value.type.size == 1
        require(fits, f"{name} must be a number or a float variable of one element, is {value}", AttrError)
        return value

    return checked


def append_step(
    g: Builder, param: Parameter, grad: Variable, lr: Variable, states: dict[str, Variable], numbers: dict[str, Any],
    decay: float = 0.0, rows: Variable | None = None,
) -> None:  # fmt: skip
    """The update of one parameter.

    states   of the slots Moment1, Moment2, Beta1Pow and Beta2Pow
    numbers  beta1, beta2 and epsilon, each a number or a Variable
    decay    the parameter is first multiplied by 1 - lr * decay
    rows     bool, broadcasts to the parameter: where it is False nothing but the powers changes; None changes all
    """
    means = []
    for slot, beta, values in (("1", "beta1", grad), ("2", "beta2", g.elementwise_mul(grad, grad))):
        moment, power = states[f"Moment{slot}"], states[f"Beta{slot}Pow"]
        b = _number(g, numbers[beta], param)
        old, new = g.elementwise_mul(moment, b), g.elementwise_mul(values, _less(g, b))
        mean = g.elementwise_add(old, new)
        if rows is not None:
            mean = g.where(rows, mean, moment)
        g.assign(mean, out={"Out": moment})
        share = g.cast(_less(g, g.reshape(power, shape=[])), dtype=param.dtype)
        means.append(g.elementwise_div(mean, share))
        g.elementwise_mul(power, g.cast(g.reshape(b, shape=[1]), dtype=float64), out={"Out": power})
    size = g.elementwise_add(g.sqrt(means[1]), _number(g, numbers["epsilon"], param))
    step = g.elementwise_div(means[0], size)
    if decay:
        step = g.elementwise_add(step, g.scale(param, scale=decay))
    if rows is not None:
        step = g.where(rows, step, g.fill_any_like(step, value=0))
    g.sgd(param, step, lr, out={"ParamOut": param}, needs=["MasterParamOut"])


def _number(g: Builder, value: Any, param: Parameter) -> Variable:
    """A 0-d Variable of the parameter's type."""
    if not isinstance(value, Variable):
        return g.fill_constant(shape=[], value=value, dtype=param.dtype)
    return g.cast(g.reshape(value, shape=[]), dtype=param.dtype)


def _less(g: Builder, x: Variable) -> Variable:
    """1 - x"""
    return g.scale(x, scale=-1.0, bias=1.0)
