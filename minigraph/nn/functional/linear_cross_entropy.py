"""The loss of a linear layer of classes, without the scores of all rows."""

from __future__ import annotations

from typing import Any

from minigraph.errors import require
from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of, whole
from minigraph.tensor.arguments import as_type, constant, output_prefix, variable
from minigraph.types import DType, float32

from .loss import kept_labels, mean_over
from .reduction import check_reduction, reduced


@whole
def fused_linear_cross_entropy(
    input: Variable, weight: Variable, label: Variable, bias: Variable | None = None,
    class_weight: Variable | None = None, token_weight: Variable | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    transpose_weight: bool = False, accumulate_dtype: Any = None, chunk_bytes: int | None = None,
    chunk_rows: int | None = None, return_z_loss: bool = False, return_accuracy: bool = False, name: str | None = None,
    use_token_scaling: bool = False, return_predicted_tokens: bool = False,
) -> Any:  # fmt: skip
    """cross_entropy(input @ weight + bias, label), computed a chunk of rows at a time.

    input             [..., H]; weight [H, V], or [V, H] with transpose_weight as tied embeddings have it; bias [V].
                      Where some have 16 bits and others are float32, all are read in 16 bits, as autocast does; a
                      compiled program gives a float32 weight its float32 sums as gradient
    label             [...] or [..., 1], class numbers; rows with ignore_index count nowhere
    class_weight      [V], factors of the rows by their class; token_weight: factors of the rows, in label's shape
    label_smoothing   this share of each label is spread evenly over all classes
    z_loss            times log-sum-exp squared is added to each row's loss
    softcap           scores are softcap * tanh(scores / softcap)
    reduction         mean (over the rows kept, by weights: divided by their sum; 0 where none is), sum or none
    accumulate_dtype  type in which weight's gradient is added up over chunks: float32 for 16-bit inputs by default
    chunk_bytes       scores of so many bytes exist at a time, by default those of 4096 rows and at most 512 MiB;
    chunk_rows        or so many rows are taken at a time
    use_token_scaling multiplies a row's loss by the probability of its label, a constant for gradients
    Returns the loss, float32 for 16-bit inputs; with return_z_loss, return_accuracy and return_predicted_tokens a
    tuple: what z_loss has added, reduced like the loss; the share of the kept rows whose label has the largest score;
    and the class with the largest score of every row, int64 in label's shape. Gradients flow through the loss only.

    In a compiled program with BuildStrategy.fuse_linear_cross_entropy the gradients are computed together with the
    loss; without it the scores are computed once more for them.
    """
    call = "fused_linear_cross_entropy"
    x, w, label = variable(input, call, "input"), variable(weight, call, "weight"), variable(label, call, "label")
    check_reduction(call, reduction)
    x, w, b = _in_16_bits(x, w, None if bias is None else variable(bias, call, "bias"))
    prefix, g = output_prefix(call, name), builder_of(x)
    side = ("ZLoss", return_z_loss), ("Prediction", return_accuracy or return_predicted_tokens)
    loss, square, prediction, *_ = g.fused_linear_cross_entropy(
        x, w, label, b, trans_w=transpose_weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        z_loss=z_loss, softcap=softcap, token_scaling=use_token_scaling, accumulate_dtype=accumulate_dtype,
        chunk_bytes=chunk_bytes, chunk_rows=chunk_rows, needs=[slot for slot, asked in side if asked], name=prefix,
    )  # fmt: skip
    kept = _kept(g, x, label, ignore_index)
    classes = w.shape[0 if transpose_weight else 1]
    factors = _factors(g, loss, label, kept, class_weight, token_weight, label_smoothing, classes)
    results = [_over_rows(g, loss, factors, kept, reduction, label.ndim)]
    if return_z_loss:
        square.stop_gradient = True
        results.append(_over_rows(g, square, factors, kept, reduction, label.ndim))
    results += _predictions(g, x, prediction, label, kept, loss.dtype, return_accuracy, return_predicted_tokens)
    return results[0] if len(results) == 1 else tuple(results)


def _kept(g: Builder, x: Variable, label: Variable, ignore_index: int) -> Variable | None:
    """Which rows count, [..., 1]; None where all do."""
    kept = kept_labels(g, label, ignore_index)
    return g.unsqueeze(kept, axes=[-1]) if kept is not None and label.ndim == x.ndim - 1 else kept


def _predictions(
    g: Builder, x: Variable, prediction: Any, label: Variable, kept: Variable | None, dtype: DType,
    accuracy: bool, tokens: bool,
) -> list[Variable]:  # fmt: skip
    """What is wanted of the classes with the largest scores: how many are right, and themselves in label's shape."""
    wanted = [_accuracy(g, prediction, label, kept, dtype)] if accuracy else []
    if tokens:
        wanted.append(prediction if label.ndim == x.ndim else g.squeeze(prediction, axes=[-1]))
    return wanted


def _in_16_bits(*operands: Variable | None) -> list[Any]:
    """float32 operands cast to the 16-bit type of the others, where these agree on one."""
    short = {v.dtype for v in operands if v is not None and v.type.is_float and v.dtype.itemsize == 2}
    if len(short) != 1:
        return [*operands]
    dtype = short.pop()
    return [as_type(v, dtype) if v is not None and v.dtype == float32 else v for v in operands]


def _over_rows(
    g: Builder, each: Variable, factors: Variable | None, kept: Variable | None, reduction: str, label_ndim: int
) -> Variable:
    """A value of each row, [..., 1], times the factors of the rows, reduced or in label's shape."""
    if factors is not None:
        each = g.elementwise_mul(each, factors)
    rows = factors if factors is not None else kept
    if reduction == "mean" and rows is not None:
        return mean_over(g, each, rows)
    if reduction == "none" and label_ndim < each.ndim:
        return g.squeeze(each, axes=[-1])
    return reduced(each, reduction)


def _accuracy(
    g: Builder, prediction: Variable, label: Variable, kept: Variable | None, dtype: DType
) -> Variable:
    """The share of the kept rows whose prediction is their label."""
    numbers = label if label.ndim == prediction.ndim else g.unsqueeze(label, axes=[-1])
    right = as_type(g.equal(prediction, as_type(numbers, prediction.dtype)), dtype)
    counted = right if kept is None else g.elementwise_mul(right, as_type(kept, dtype))
    accuracy = reduced(counted, "mean") if kept is None else mean_over(g, counted, kept)
    accuracy.stop_gradient = True
    return accuracy


def _factors(
    g: Builder, loss: Variable, label: Variable, kept: Variable | None, class_weight: Variable | None,
    token_weight: Variable | None, smoothing: float, classes: int,
) -> Variable | None:  # fmt: skip
    """What the rows are multiplied by, in loss' shape: 0 for ignored ones; None where nothing is."""
    call, factors = "fused_linear_cross_entropy", None
    if class_weight is not None:
        table = as_type(variable(class_weight, call, "class_weight"), loss.dtype)
        require(table.shape in ((classes,), (-1,)), f"class_weight must be [{classes}], is {class_weight}")
        numbers = label if label.ndim < loss.ndim else g.squeeze(label, axes=[-1])
        if kept is not None:
            numbers = g.where(g.squeeze(kept, axes=[-1]), numbers, constant(0, label.dtype, label))
        factors = g.embedding(numbers, g.unsqueeze(table, axes=[-1]))
        if smoothing:
            mean = g.scale(g.reduce_mean(table), scale=smoothing)
            factors = g.elementwise_add(g.scale(factors, scale=1 - smoothing), mean)
    if token_weight is not None:
        given = as_type(variable(token_weight, call, "token_weight"), loss.dtype)
        given = given if given.ndim == loss.ndim else g.unsqueeze(given, axes=[-1])
        require(given.type.accepts(loss.type), f"token_weight must have label's shape, is {token_weight}")
        factors = given if factors is None else g.elementwise_mul(factors, given)
    if factors is None or kept is None:
        return factors
    return g.elementwise_mul(factors, as_type(kept, loss.dtype))
