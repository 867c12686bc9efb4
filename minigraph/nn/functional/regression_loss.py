"""Losses of numbers and of distributions."""

from __future__ import annotations

import math

from minigraph.errors import AttrError, ShapeError, call_site, require
from minigraph.errors.kinds import AXIS
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor import abs, clip, exp, log, square, sum, unsqueeze, where
from minigraph.tensor.arguments import as_type, operands, output_prefix, promoted, variable

from .reduction import REDUCTIONS, check_reduction, reduced, same_shapes, with_reduction


@whole
def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label)^2, element by element."""
    call = "square_error_cost"
    x, y = operands(variable(input, call, "input"), variable(label, call, "label"), call)
    g, prefix = builder_of(x), output_prefix(call, None)
    return g.square(g.elementwise_sub(x, y, name=prefix), name=prefix)


@with_reduction
def mse_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The mean (or sum, or each) of (input - label)^2. The operands broadcast, as in Paddle."""
    return square_error_cost(input, label)


@with_reduction
def l1_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """The mean (or sum, or each) of |input - label|. The operands broadcast, as in Paddle."""
    return abs(input - label)


@with_reduction
def smooth_l1_loss(
    input: Variable, label: Variable, reduction: str = "mean", delta: float = 1.0, name: str | None = None
) -> Variable:
    """Huber's loss of d = input - label: d^2 / 2 where |d| <= delta, else delta * (|d| - delta / 2)."""
    same_shapes("smooth_l1_loss", input=input, label=label)
    distance = abs(input - label)
    near = clip(distance, max=delta)
    return square(near) * 0.5 + (distance - near) * delta


@whole
def kl_div(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """label * (log(label) - input) of probabilities `label` and logarithms of probabilities `input`; 0 for label 0.

    reduction  mean over all elements, sum, none, or batchmean: the sum divided by the size of axis 0
    """
    x, y = variable(input, "kl_div", "input"), variable(label, "kl_div", "label")
    check_reduction("kl_div", reduction, (*REDUCTIONS, "batchmean"))
    same_shapes("kl_div", input=x, label=y)
    if x.dtype != y.dtype and x.type.is_float and y.type.is_float:
        wide = max(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
        x, y = as_type(x, wide), as_type(y, wide)
    x, y = promoted(x, y)
    present = y > 0
    loss = where(present, y * (log(where(present, y, 1.0)) - x), 0.0)
    if reduction != "batchmean":
        return reduced(loss, reduction)
    if x.ndim == 0:
        raise AXIS(f"batchmean of {x}, which has no axis 0", call="kl_div", site=call_site())
    rows = sum(loss, axis=list(range(1, x.ndim))) if x.ndim > 1 else loss
    return builder_of(x).reduce_mean(rows)


@with_reduction
def poisson_nll_loss(
    input: Variable, label: Variable, log_input: bool = True, full: bool = False, epsilon: float = 1e-8,
    reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """-log of the probability of the count `label` at the rate exp(input), without its constant part.

    exp(input) - label * input, or with log_input=False input - label * log(input + epsilon)
    full  adds Stirling's approximation of log(label!) where label > 1
    """
    require(epsilon > 0, f"epsilon must be positive, is {epsilon}", AttrError)
    same_shapes("poisson_nll_loss", input=input, label=label)
    count = as_type(label, input.dtype)
    loss = exp(input) - count * input if log_input else input - count * log(input + epsilon)
    if full:
        many = count > 1
        n = where(many, count, 1.0)
        loss = loss + where(many, n * log(n) - n + log(n * (2 * math.pi)) * 0.5, 0.0)
    return loss


@with_reduction
def gaussian_nll_loss(
    input: Variable, label: Variable, variance: Variable, full: bool = False, epsilon: float = 1e-6,
    reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """(log(variance) + (input - label)^2 / variance) / 2

    variance  has input's shape, or lacks its last axis, or has size 1 there. Where it is below epsilon it counts as
              epsilon; a negative one gives no error, which Paddle raises while the program runs
    full      adds log(2 pi) / 2
    """
    if variance.ndim == input.ndim - 1:
        variance = unsqueeze(variance, -1)
    fits = variance.ndim == input.ndim
    fits = fits and all(a == b or -1 in (a, b) for a, b in zip(variance.shape[:-1], input.shape[:-1], strict=True))
    if not fits or (input.ndim and variance.shape[-1] not in (1, -1, input.shape[-1])):
        raise ShapeError(f"variance {variance} does not fit input {input}", call="gaussian_nll_loss", site=call_site())
    spread = clip(variance, min=epsilon)
    loss = (log(spread) + square(input - label) / spread) * 0.5
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


__all__ = [
    "gaussian_nll_loss", "kl_div", "l1_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "square_error_cost",
]  # fmt: skip
