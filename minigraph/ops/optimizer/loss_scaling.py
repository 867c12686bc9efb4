"""Loss scaling of mixed precision: whether a gradient has overflowed, and what the next scale is.

    scaled loss -> gradients -> check_finite_and_unscale -> FoundInfinite -> SkipUpdate of every update
                                                                          -> update_loss_scaling

All of it stays on the device. Source: Micikevicius and others, Mixed Precision Training,
arXiv:1710.03740; operators and slots are Paddle's.
"""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.opdef import Arrays, op
from minigraph.types import INTS, TensorType, bool_

from .update import state_dtype

MOST_STEPS = 1 << 24  # a GPU compares counters in float32


@op("Out?*, FoundInfinite", traits={"nondifferentiable"}, gpu="optimizer.loss_scaling")
def check_finite_and_unscale(X: Arrays, Scale, *, needs=frozenset({"Out"}), out=None):
    """Out = X / Scale, rounded once; FoundInfinite is true where an element of X is infinite or NaN.

    X      floats of any types
    Scale  one float, the loss scale
    Out    the quotients, if they are read, of the types of X; of no use where FoundInfinite holds
    """
    found = not all(np.isfinite(x).all() for x in X)
    scale = Scale.reshape(())
    goals = out[0] if out and out[0] is not None else [None] * len(X)
    divided = [_divided(*pair, scale) for pair in zip(X, goals, strict=True)] if "Out" in needs else None
    return divided, np.array([found])


def _divided(x: np.ndarray, to: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        quotient = np.divide(x, scale, out=to, dtype=state_dtype(x.dtype), casting="unsafe")
    return np.asarray(quotient).astype(x.dtype, copy=False)


def _is_number(type: TensorType) -> bool:
    """Whether it has one element, as far as sizes are known."""
    return set(type.shape) <= {1, -1}


@check_finite_and_unscale.infer
def _(X, Scale):
    for x in X:
        require(x.is_float, f"X must hold floats, holds {x}", DTypeError)
    require(Scale.is_float and _is_number(Scale), f"Scale must be one float, is {Scale}", DTypeError)
    return list(X), TensorType((1,), bool_)


@check_finite_and_unscale.samples
def _(rng):
    some = [rng.normal(size=(4, 3)), rng.normal(size=()), rng.normal(size=(0, 3)), rng.normal(size=2500)]
    yield (some, np.array([4.0])), {}
    for bad in (math.inf, -math.inf, math.nan):
        broken = [x.copy() for x in some]
        broken[3][2049] = bad
        yield (broken, np.array([4.0])), {}


def _scale(found: str) -> str:
    less, more = "PrevLossScaling * decr_ratio", "PrevLossScaling * incr_ratio"
    lower = f"InBadSteps + 1 >= decr_every_n_nan_or_inf ? ({less} < C(1) ? C(1) : {less}) : PrevLossScaling"
    # a factor of 0 tells what is finite; a difference could be contracted to the rounding error of the product
    higher = f"InGoodSteps + 1 >= incr_every_n_steps && {more} * C(0) == C(0) ? {more} : PrevLossScaling"
    return f"{found} ? ({lower}) : ({higher})"


@op(
    "LossScaling, OutGoodSteps, OutBadSteps", traits={"nondifferentiable"},
    inplace={"LossScaling": "PrevLossScaling", "OutGoodSteps": "InGoodSteps", "OutBadSteps": "InBadSteps"},
    cuda={
        "LossScaling": _scale("FoundInfinite"),
        "OutGoodSteps": "FoundInfinite || InGoodSteps + 1 >= incr_every_n_steps ? 0 : InGoodSteps + 1",
        "OutBadSteps": "!FoundInfinite || InBadSteps + 1 >= decr_every_n_nan_or_inf ? 0 : InBadSteps + 1",
    },
)  # fmt: skip
def update_loss_scaling(
    FoundInfinite, PrevLossScaling, InGoodSteps, InBadSteps, *, incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2, incr_ratio: float = 2.0, decr_ratio: float = 0.8, out=None,
):  # fmt: skip
    """The loss scale of the next step, and how many good or bad steps have come one after the other.

    incr_every_n_steps       good steps in a row after which the scale is multiplied by incr_ratio, if that is finite
    decr_every_n_nan_or_inf  bad steps in a row after which it is multiplied by decr_ratio, down to 1 at the least
    """
    ratio = PrevLossScaling.dtype.type
    scale, good, bad = PrevLossScaling, InGoodSteps + 1, InBadSteps + 1
    if FoundInfinite.item():
        good = np.zeros_like(InGoodSteps)
        if bad.item() >= decr_every_n_nan_or_inf:
            scale, bad = np.maximum(scale * ratio(decr_ratio), ratio(1)), np.zeros_like(InBadSteps)
    else:
        bad = np.zeros_like(InBadSteps)
        if good.item() >= incr_every_n_steps:
            with np.errstate(over="ignore"):
                more = scale * ratio(incr_ratio)
            scale, good = more if np.isfinite(more).all() else scale, np.zeros_like(InGoodSteps)
    values = np.array(scale), good, bad
    return tuple(_put(value, to) for value, to in zip(values, out or (None,) * 3, strict=True))


def _put(value: np.ndarray, to: np.ndarray | None) -> np.ndarray:
    if to is None:
        return value
    to[...] = value
    return to


@update_loss_scaling.infer
def _(FoundInfinite, PrevLossScaling, InGoodSteps, InBadSteps, **attrs):
    fits = FoundInfinite.dtype == bool_ and _is_number(FoundInfinite)
    require(fits, f"FoundInfinite must be one bool, is {FoundInfinite}", DTypeError)
    fits = PrevLossScaling.is_float and _is_number(PrevLossScaling)
    require(fits, f"PrevLossScaling must be one float, is {PrevLossScaling}", DTypeError)
    for name, steps in (("InGoodSteps", InGoodSteps), ("InBadSteps", InBadSteps)):
        require(steps.dtype in INTS and _is_number(steps), f"{name} must be one integer, is {steps}", DTypeError)
    for name in ("incr_every_n_steps", "decr_every_n_nan_or_inf"):
        require(1 <= attrs[name] <= MOST_STEPS, f"{name} must lie in [1, {MOST_STEPS}], is {attrs[name]}", AttrError)
    up, down = attrs["incr_ratio"], attrs["decr_ratio"]
    require(1 < up < math.inf, f"incr_ratio must be greater than 1 and finite, is {up}", AttrError)
    require(0 < down < 1, f"decr_ratio must lie in (0, 1), is {down}", AttrError)
    return PrevLossScaling, InGoodSteps, InBadSteps


@update_loss_scaling.samples
def _(rng):
    facts = {"incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 2, "incr_ratio": 2.0, "decr_ratio": 0.5}
    for found, scale, good, bad in (
        (False, 8.0, 1, 0), (False, 8.0, 2, 0), (True, 8.0, 2, 0), (True, 8.0, 0, 1), (True, 1.5, 0, 1),
    ):  # fmt: skip
        steps = np.array([good], np.int32), np.array([bad], np.int32)
        yield (np.array([found]), np.array([scale]), *steps), facts
    steps = np.array([2], np.int32), np.array([0], np.int32)
    yield (np.array([False]), np.array([1.7]), *steps), {**facts, "incr_ratio": 1.1}  # a product that is rounded
