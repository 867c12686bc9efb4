"""Losses of class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import AttrError, ShapeError, call_site
from minigraph.errors.kinds import UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of, whole
from minigraph.tensor.arguments import as_type, constant, emit, operands, output_prefix, variable
from minigraph.types import INTS, bool_, float32, float64, normalize_axis

from .reduction import check_reduction, reduced


def softmax_with_cross_entropy(
    logits: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100,
    numeric_stable_mode: bool = True, return_softmax: bool = False, axis: int = -1,
) -> Any:  # fmt: skip
    """log(sum(exp(logits))) - logits[label] along `axis`, which has size 1 in the result.

    label   class numbers with size 1 at `axis` or without that axis; with soft_label weights of the
            classes in logits' shape
    Rows whose label is ignore_index have loss 0. return_softmax: (loss, softmax). The computation is
    always the stable one.
    """
    call = "softmax_with_cross_entropy"
    softmax, loss = emit(
        call, call, variable(logits, call, "logits"), variable(label, call, "label"), soft_label=soft_label,
        ignore_index=ignore_index, axis=axis,
    )  # fmt: skip
    return (loss, softmax) if return_softmax else loss


@whole
def label_smooth(
    label: Variable, prior_dist: Variable | None = None, epsilon: float = 0.1, name: str | None = None
) -> Variable:
    """(1 - epsilon) * label + epsilon * prior_dist, by default the uniform distribution over the last axis."""
    label = variable(label, "label_smooth", "label")
    g, prefix = builder_of(label), output_prefix("label_smooth", name)
    if prior_dist is not None:
        prior = g.scale(variable(prior_dist, "label_smooth", "prior_dist"), scale=epsilon)
        return g.elementwise_add(g.scale(label, scale=1 - epsilon), prior, name=prefix)
    return g.scale(label, scale=1 - epsilon, bias=epsilon / _classes(label, label.ndim - 1), name=prefix)


@whole
def cross_entropy(
    input: Variable, label: Variable, weight: Variable | None = None, ignore_index: int = -100,
    reduction: str = "mean", soft_label: bool = False, axis: int = -1, use_softmax: bool = True,
    label_smoothing: float = 0.0, name: str | None = None,
) -> Variable:  # fmt: skip
    """-log(softmax(input)[label]) along `axis`, averaged over the rows.

    input            scores of the classes along `axis`; with use_softmax=False probabilities
    label            class numbers, input's shape without `axis` or with size 1 there; with soft_label
                     probabilities in input's shape
    weight           [classes] factors of the rows by their class
    ignore_index     rows with this label count nowhere
    label_smoothing  this share of each label is spread evenly over all classes; then floats in input's shape are
                     probabilities, also without soft_label
    reduction        mean, sum or none; none has label's shape, for soft labels with size 1 at `axis`

    The mean is over the rows kept (with `weight`: divided by the sum of their weights), whatever
    ignore_index is; Paddle's static mode divides by all rows if it is negative. With no row kept it is 0.
    """
    call = "cross_entropy"
    x, label = variable(input, call, "input"), variable(label, call, "label")
    check_reduction(call, reduction)
    if not 0 <= label_smoothing <= 1:
        raise AttrError(f"label_smoothing {label_smoothing} is not in [0, 1]", call=call, site=call_site())
    g, axis = builder_of(x), normalize_axis(axis, x.ndim)
    if label_smoothing and label.type.is_float and label.ndim == x.ndim and label.shape[axis] == x.shape[axis]:
        soft_label, label = True, as_type(label, x.dtype)
    drop_axis = not soft_label and label.ndim == x.ndim - 1
    simple = use_softmax and label_smoothing == 0
    kept = None if soft_label else kept_labels(g, label, ignore_index)
    if simple and weight is None:
        last = -1 if axis == x.ndim - 1 else axis  # the default, which need not be said
        loss = softmax_with_cross_entropy(x, label, soft_label, ignore_index, axis=last)
        rows = kept
    else:
        if kept is not None and drop_axis:
            kept = g.unsqueeze(kept, axes=[axis])
        target = _distribution(g, x, label, kept, soft_label, axis, label_smoothing)
        loss = _cross_entropy(g, x, target, kept, axis, use_softmax)
        rows = kept if weight is None else _row_weights(g, target, variable(weight, call, "weight"), axis)
        if kept is not None:
            loss = g.where(kept, loss, constant(0, loss.dtype, x))  # of class 0 it may be infinite
            rows = kept if weight is None else g.elementwise_mul(rows, g.cast(kept, dtype=loss.dtype))
        if weight is not None:
            loss = g.elementwise_mul(loss, rows)
    if reduction == "mean" and rows is not None:
        return mean_over(g, loss, rows)
    return g.squeeze(loss, axes=[axis]) if reduction == "none" and drop_axis else reduced(loss, reduction)


def kept_labels(g: Builder, label: Variable, ignore_index: int) -> Variable | None:
    """Which rows count, None where no label can be ignore_index."""
    if label.dtype in INTS and not np.iinfo(label.dtype).min <= ignore_index <= np.iinfo(label.dtype).max:
        return None
    label, ignored = operands(label, ignore_index, "cross_entropy")
    return g.not_equal(label, ignored)


def _distribution(
    g: Builder, x: Variable, label: Variable, kept: Variable | None, soft_label: bool, axis: int, smoothing: float
) -> Variable:
    """The label as weights of the classes in x's shape; an ignored row is class 0 for now."""
    if not soft_label:
        numbers = label if label.ndim == x.ndim - 1 else g.squeeze(label, axes=[axis])
        if kept is not None:
            zero = constant(0, label.dtype, label)
            numbers = g.where(g.squeeze(kept, axes=[axis]), numbers, zero)
        label = _one_hot(g, numbers, x, axis)
    if smoothing == 0:
        return label
    return g.scale(label, scale=1 - smoothing, bias=smoothing / _classes(x, axis))


def _one_hot(g: Builder, numbers: Variable, x: Variable, axis: int) -> Variable:
    """1 in x's shape where the position along `axis` is the row's number."""
    label = g.one_hot(numbers, depth=_classes(x, axis), dtype=x.dtype)
    if axis == x.ndim - 1:
        return label
    order = list(range(x.ndim - 1))
    order.insert(axis, x.ndim - 1)
    return g.transpose(label, perm=order)


def picked(x: Variable, label: Variable, axis: int, kept: Variable | None = None) -> tuple[Variable, Variable]:
    """The elements of x at `label` along `axis`, which has size 1 then; and where in x they stand, as bool.

    label  class numbers with size 1 at `axis` or without it; kept: of that shape, where False class 0 stands for it
    """
    g = builder_of(x)
    if label.ndim == x.ndim:
        label = g.squeeze(label, axes=[axis])
        kept = None if kept is None else g.squeeze(kept, axes=[axis])
    if kept is not None:
        label = g.where(kept, label, constant(0, label.dtype, label))
    chosen = g.cast(_one_hot(g, label, x, axis), dtype=bool_)
    own = g.reduce_sum(g.where(chosen, x, constant(0, x.dtype, x)), axis=[axis], keepdim=True)
    return own, chosen


@whole
def nll_loss(
    input: Variable, label: Variable, weight: Variable | None = None, ignore_index: int = -100,
    reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """-input[label] of logarithms of probabilities [N, C, ...], times weight[label].

    label         class numbers [N, ...]; rows with ignore_index count nowhere
    weight        [C]
    reduction     mean (divided by the sum of the weights of the rows kept; 0 where none is), sum, or none, which has
                  label's shape
    """
    call = "nll_loss"
    x, label = variable(input, call, "input"), variable(label, call, "label")
    check_reduction(call, reduction)
    if x.ndim < 2 or label.ndim != x.ndim - 1:
        raise ShapeError(f"label {label} must be input {x} without axis 1", call=call, site=call_site())
    g, kept = builder_of(x), kept_labels(g=builder_of(x), label=label, ignore_index=ignore_index)
    own, chosen = picked(x, label, 1, kept)
    loss, rows = g.scale(g.squeeze(own, axes=[1]), scale=-1.0), kept
    if weight is not None:
        factors = g.reshape(variable(weight, call, "weight"), shape=(-1, *[1] * (x.ndim - 2)))
        rows = g.reduce_sum(g.where(chosen, factors, constant(0, factors.dtype, x)), axis=[1])
        loss = g.elementwise_mul(loss, rows)
    if kept is not None:
        nothing = constant(0, loss.dtype, x)
        loss = g.where(kept, loss, nothing)
        rows = kept if weight is None else g.where(kept, rows, nothing)
    return mean_over(g, loss, rows) if reduction == "mean" and rows is not None else reduced(loss, reduction)


def _cross_entropy(
    g: Builder, x: Variable, target: Variable, kept: Variable | None, axis: int, use_softmax: bool
) -> Variable:
    """-sum(target * log(probability)) along axis, which has size 1 then; 0 * log(0) is 0. Rows count where `kept`."""
    if use_softmax:
        return softmax_with_cross_entropy(x, target, soft_label=True, axis=axis)
    absent = g.equal(target, constant(0, target.dtype, target))
    if kept is not None:
        absent = g.logical_or(absent, g.logical_not(kept))
    logs = g.log(g.where(absent, constant(1, x.dtype, x), x))
    return g.scale(g.reduce_sum(g.elementwise_mul(target, logs), axis=[axis], keepdim=True), scale=-1.0)


def _row_weights(g: Builder, target: Variable, weight: Variable, axis: int) -> Variable:
    """sum(target * weight) along axis: for hard labels the weight of the row's class."""
    trailing = target.ndim - 1 - axis
    if trailing and weight.ndim == 1:
        weight = g.unsqueeze(weight, axes=[1 + i for i in range(trailing)])
    return g.reduce_sum(g.elementwise_mul(target, weight), axis=[axis], keepdim=True)


def mean_over(g: Builder, loss: Variable, rows: Variable) -> Variable:
    """sum(loss) / sum(rows), 0 / 1 where no row counts; sums of 16-bit floats in float32."""
    count = g.reduce_sum(rows)
    one = constant(1, count.dtype, loss)
    if rows.dtype == bool_:
        count = g.elementwise_max(count, one)
    else:
        count = g.where(g.equal(count, constant(0, count.dtype, loss)), one, count)
    dtype = loss.dtype if loss.dtype in (float32, float64) else float32
    mean = g.elementwise_div(g.reduce_sum(as_type(loss, dtype)), as_type(count, dtype))
    return as_type(mean, loss.dtype)


def _classes(x: Variable, axis: int) -> int:
    if x.shape[axis] < 1:
        raise UNKNOWN_SIZE(f"the number of classes, axis {axis} of {x}, must be known", call="loss", site=call_site())
    return x.shape[axis]


__all__ = ["cross_entropy", "label_smooth", "nll_loss", "softmax_with_cross_entropy"]
