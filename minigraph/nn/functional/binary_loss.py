"""Losses of questions that are answered by yes or no."""

from __future__ import annotations

from minigraph.errors import DTypeError, ShapeError, call_site, require
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor import cast, log, matmul, mean, pow, square, squeeze, sum
from minigraph.tensor.arguments import as_type, variable
from minigraph.types import INTS

from .activation import log_sigmoid, sigmoid
from .linear import one_hot_as
from .loss import cross_entropy
from .reduction import same_shapes, with_reduction


@with_reduction
def binary_cross_entropy(
    input: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean", name: str | None = None
) -> Variable:
    """-(label * log(input) + (1 - label) * log(1 - input)) of probabilities, times `weight`, which broadcasts.

    Logarithms below -100 count as -100.
    """
    loss = builder_of(input).bce_loss(input, label)
    return loss if weight is None else loss * weight


@with_reduction
def binary_cross_entropy_with_logits(
    logit: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean",
    pos_weight: Variable | None = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """binary_cross_entropy(sigmoid(logit), label), which loses nothing where the sigmoid is 0 or 1.

    pos_weight  multiplies the loss by label * (pos_weight - 1) + 1; like weight it broadcasts
    """
    loss = builder_of(logit).sigmoid_cross_entropy_with_logits(logit, label)
    if pos_weight is not None:
        loss = loss * (label * (pos_weight - 1) + 1)
    return loss if weight is None else loss * weight


@with_reduction
def sigmoid_focal_loss(
    logit: Variable, label: Variable, normalizer: Variable | None = None, alpha: float = 0.25, gamma: float = 2.0,
    reduction: str = "sum", name: str | None = None,
) -> Variable:  # fmt: skip
    """The cross entropy of sigmoid(logit) = p, of which what is known well counts less.

    loss = alpha_t * (1 - p_t)^gamma * cross entropy, where p_t is p for the label 1 and 1 - p for 0, and alpha_t is
    alpha and 1 - alpha; divided by the number of foreground samples, `normalizer`.
    Source: Lin and others, Focal Loss for Dense Object Detection, arXiv:1708.02002.
    """
    loss = builder_of(logit).sigmoid_cross_entropy_with_logits(logit, label)
    p = sigmoid(logit)
    missed = 1 - (p * label + (1 - p) * (1 - label))
    loss = loss * (label * alpha + (1 - label) * (1 - alpha)) * pow(missed, gamma)
    return loss if normalizer is None else loss / normalizer


@with_reduction
def soft_margin_loss(
    input: Variable, label: Variable, reduction: str = "mean", name: str | None = None
) -> Variable:
    """log(1 + exp(-label * input)) with labels -1 and 1, of input's type or ints."""
    same_shapes("soft_margin_loss", input=input, label=label)
    return builder_of(input).softplus(-(as_type(label, input.dtype) * input))


@with_reduction
def multi_label_soft_margin_loss(
    input: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean", name: str | None = None
) -> Variable:
    """The mean over the last axis, the classes, of the cross entropy of sigmoid(input) with labels 0 and 1.

    weight  of the classes; with reduction="none" the last axis is gone
    """
    same_shapes("multi_label_soft_margin_loss", input=input, label=label)
    loss = -(label * log_sigmoid(input) + (1 - label) * log_sigmoid(-input))
    return mean(loss if weight is None else loss * weight, axis=-1)


@whole
def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """-label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon) of each element."""
    x, y = variable(input, "log_loss", "input"), variable(label, "log_loss", "label")
    same_shapes("log_loss", input=x, label=y)
    return -(y * log(x + epsilon)) - (1 - y) * log(1 - x + epsilon)


@whole
def dice_loss(input: Variable, label: Variable, epsilon: float = 1e-5, name: str | None = None) -> Variable:
    """1 - 2 * |input and label| / (|input| + |label|) of each sample, and of these the mean.

    input  probabilities of the classes [N, ..., C]; label class numbers [N, ..., 1]
    """
    call = "dice_loss"
    x, y = variable(input, call, "input"), variable(label, call, "label")
    require(y.dtype in INTS, f"label must be an int, is {y}", DTypeError)
    if x.ndim < 2 or y.ndim != x.ndim or y.shape[-1] != 1 or x.shape[-1] < 1:
        raise ShapeError(f"label {y} must be input {x} with 1 as the last size", call=call, site=call_site())
    target = one_hot_as(squeeze(y, -1), x.shape[-1], x.dtype)
    axes = list(range(1, x.ndim))
    both = sum(x * target, axis=axes)
    sizes = sum(x, axis=axes) + sum(target, axis=axes)
    return mean(1 - both * 2 / (sizes + epsilon))


@whole
def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """The cross entropy of the similarities anchor @ positive^T with the pairs that have equal labels.

    anchor, positive  [N, D]; labels [N]. l2_reg / 4 times the mean squared length of both is added.
    Source: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NeurIPS 2016.
    """
    call = "npair_loss"
    x, y = variable(anchor, call, "anchor"), variable(positive, call, "positive")
    labels = variable(labels, call, "labels")
    g = builder_of(x)
    pairs = cast(g.equal(g.reshape(labels, shape=(-1, 1)), g.reshape(labels, shape=(1, -1))), x.dtype)
    target = pairs / sum(pairs, axis=1, keepdim=True)
    lengths = mean(sum(square(x), axis=1)) + mean(sum(square(y), axis=1))
    return lengths * (0.25 * l2_reg) + cross_entropy(matmul(x, y, transpose_y=True), target, soft_label=True)


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "dice_loss", "log_loss",
    "multi_label_soft_margin_loss", "npair_loss", "sigmoid_focal_loss", "soft_margin_loss",
]  # fmt: skip
