"""Losses of one probability or score and its label, element by element."""

from __future__ import annotations

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import op
from minigraph.types import TensorType, float16

from .elementwise import draw, infer_binary
from .unary import infer_float

SHAPES = ((4, 3), (), (0, 3), (1,), (2, 1, 3))
LOWEST_LOG = -100.0  # of a probability 0, whose logarithm would be -inf
SMALLEST = 1e-12  # of X * (1 - X) below the slope
SMALLEST_HALF = 2.0**-24  # the smallest of float16, in which 1e-12 is 0


def _infer(X: TensorType, Label: TensorType) -> TensorType:
    require(X.dtype == Label.dtype, f"X is {X.dtype}, Label is {Label.dtype}", MIXED_TYPES, "cast one of them")
    infer_binary(X, Label)
    require(X.ndim == Label.ndim and (X.accepts(Label) or Label.accepts(X)), f"X is {X}, Label is {Label}")
    return infer_float(X)


@op(traits={"elementwise"},
    cuda="(Label - C(1)) * max_nan(C(log1p(-X)), C(-100)) - Label * max_nan(C(log(X)), C(-100))")  # fmt: skip
def bce_loss(X, Label):
    """-(Label * log(X) + (1 - Label) * log(1 - X)) of probabilities X; no logarithm is below -100."""
    low = X.dtype.type(LOWEST_LOG)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (Label - 1) * np.maximum(np.log1p(-X), low) - Label * np.maximum(np.log(X), low)


bce_loss.infer(_infer)


@bce_loss.grad
def _(g, X, Label, Out_grad):
    """(X - Label) / (X * (1 - X)), the divisor at least SMALLEST; and log(1 - X) - log(X)."""
    rest = g.scale(X, scale=-1.0, bias=1.0)
    spread = g.clip(g.elementwise_mul(X, rest), min=SMALLEST_HALF if X.dtype == float16 else SMALLEST)
    X_grad = g.elementwise_mul(Out_grad, g.elementwise_div(g.elementwise_sub(X, Label), spread))
    if not g.wanted("Label_grad", ()):
        return X_grad
    logs = [g.clip(g.log(p), min=LOWEST_LOG) for p in (rest, X)]
    return X_grad, g.elementwise_mul(Out_grad, g.elementwise_sub(*logs))


@bce_loss.samples
def _(rng):
    for shape in SHAPES:
        yield (rng.uniform(0.1, 0.9, shape), rng.uniform(0.0, 1.0, shape)), {}


@op(traits={"elementwise"}, cuda="(X > C(0) ? X : C(0)) - X * Label + log1p(exp(-fabs(X)))")
def sigmoid_cross_entropy_with_logits(X, Label):
    """bce_loss(sigmoid(X), Label), which loses nothing where the sigmoid is 0 or 1."""
    return np.maximum(X, X.dtype.type(0)) - X * Label + np.log1p(np.exp(-np.abs(X)))


sigmoid_cross_entropy_with_logits.infer(_infer)


@sigmoid_cross_entropy_with_logits.grad
def _(g, X, Label, Out_grad):
    X_grad = g.elementwise_mul(Out_grad, g.elementwise_sub(g.sigmoid(X), Label))
    if not g.wanted("Label_grad", ()):
        return X_grad
    return X_grad, g.scale(g.elementwise_mul(Out_grad, X), scale=-1.0)


@sigmoid_cross_entropy_with_logits.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape), rng.uniform(0.0, 1.0, shape)), {}
    yield (np.array([-60.0, 60.0, 0.0]), np.array([0.0, 1.0, 1.0])), {}
