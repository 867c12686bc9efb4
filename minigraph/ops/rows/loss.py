"""Losses over class scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import INDEX, MIXED_TYPES
from minigraph.opdef import Rows, op
from minigraph.types import INTS, TensorType, normalize_axis

from .softmax import last_axis, require_scores

BY_ROW, SOFT = frozenset({"Label", "Loss", "Loss_grad"}), {"Label": "soft_label"}


def infer_labels(Label: TensorType, Logits: TensorType, axis: int, soft_label: bool) -> tuple[int, ...]:
    """The shape of Loss: Logits' with size 1 at `axis`; Label must fit."""
    shape = Logits.shape
    if soft_label:
        require(Label.dtype == Logits.dtype, f"soft Label is {Label.dtype}, Logits is {Logits.dtype}", MIXED_TYPES)
        require(Label.accepts(Logits), f"soft Label must have Logits' shape {list(shape)}, is {Label}")
    else:
        require(
            Label.dtype in INTS, f"Label must hold class numbers, is {Label.dtype}", DTypeError,
            "cast it to int64, or set soft_label=True for class weights",
        )  # fmt: skip
        rows = (*shape[:axis], *([1] if Label.ndim == len(shape) else []), *shape[axis + 1 :])
        require(
            Label.accepts(Logits.with_shape(rows).with_dtype(Label.dtype)),
            f"Label must have Logits' shape {list(shape)} with size 1 at axis {axis}, or without that axis; is {Label}",
        )
    return (*shape[:axis], 1, *shape[axis + 1 :])


def class_numbers(Label: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    """Hard labels without the class axis."""
    return np.squeeze(Label, axis) if Label.ndim == ndim else Label


def place_of(numbers: np.ndarray) -> tuple[Any, ...]:
    """Index that picks, from scores with the classes last, each row's own class."""
    return (*np.indices(numbers.shape, sparse=True), numbers)


def kept_rows(numbers: np.ndarray, classes: int, ignore_index: int) -> np.ndarray | None:
    """Which rows are not ignored, None for all; a label that is no class is refused."""
    if not numbers.size or (numbers.min() >= 0 and numbers.max() < classes):
        return numbers != ignore_index if 0 <= ignore_index < classes else None
    kept = numbers != ignore_index
    wrong = kept & ((numbers < 0) | (numbers >= classes))
    if wrong.any():
        row = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise INDEX(
            f"label {numbers[row]} of row {row[0] if len(row) == 1 else list(row)} is not a class in [0, {classes})"
            f" and not ignore_index {ignore_index}"
        )
    return kept


@op("Softmax, Loss", traits={"reports", "loss"}, inplace={"Softmax": "Logits"}, gpu="rows.loss",
    rows=Rows(last_axis, BY_ROW, unless=SOFT))  # fmt: skip
def softmax_with_cross_entropy(
    Logits, Label, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1, out=None
):  # fmt: skip
    """Loss = log(sum(exp(Logits))) - Logits[Label] along `axis`; Softmax is kept for backward.

    Label        class numbers, an integer array of Logits' shape with size 1 at axis (or without that
                 axis); with soft_label class weights of Logits' shape, Loss = -sum(Label * log(Softmax))
    ignore_index rows with this label have Loss 0 and no gradient
    Loss has size 1 at axis. It comes from the log-sum-exp, never from log(Softmax), so large scores
    lose nothing. A label outside [0, C) is a KernelError. The classes are on the last axis by default
    as in Paddle; ONNX's SoftmaxCrossEntropyLoss has them on axis 1, reduces, and returns log(Softmax).
    """
    axis = axis % Logits.ndim
    softmax_out, loss_out = out or (None, None)
    numbers = kept = None
    if not soft_label:
        numbers = class_numbers(Label, Logits.ndim, axis).astype(np.intp, copy=False)
        kept = kept_rows(numbers, Logits.shape[axis], ignore_index)
        if kept is not None:
            numbers = np.where(kept, numbers, 0)
    shifted = np.subtract(Logits, Logits.max(axis=axis, keepdims=True), out=softmax_out)
    if numbers is None:
        weighted = Label * shifted
        np.copyto(weighted, 0, where=Label == 0)  # a class of weight 0 may have the score -inf
        own = weighted.sum(axis=axis, keepdims=True)
    else:
        own = np.expand_dims(np.moveaxis(shifted, axis, -1)[place_of(numbers)], axis)
    np.exp(shifted, out=shifted)
    total = shifted.sum(axis=axis, keepdims=True)
    log_total = np.log(total)
    if soft_label:
        log_total *= Label.sum(axis=axis, keepdims=True)
    Loss = np.subtract(log_total, own, out=loss_out)
    if kept is not None:
        np.copyto(Loss, 0, where=~np.expand_dims(kept, axis))
    return np.divide(shifted, total, out=shifted), Loss


@softmax_with_cross_entropy.cuda_rows
def _(r):
    x, soft = r.read("Logits"), r.attrs["soft_label"]
    r.total("most", x, "max")
    power = f"exp({x} - most)"
    if "Softmax" in r.outs:
        r.lines.append(f"C e[N]; ALL e[i] = {power};")
        power = "e[i]"
    if soft:
        w = r.read("Label")
        r.total("sum", power)
        r.totals({"weight": w, "own": f"{w} == C(0) ? C(0) : {w} * ({x} - most)"})
        r.once("Loss", "log(sum) * weight - own")
    else:
        r.find_label()
        r.totals({"sum": power, "own": f"{r.IS_LABEL} ? {x} - most : C(0)"})
        r.once("Loss", "label < 0 ? C(0) : log(sum) - own")
    r.each("Softmax", "e[i] / sum")


@softmax_with_cross_entropy.infer
def _(Logits, Label, *, soft_label, ignore_index, axis):
    axis = require_scores("Logits", Logits, axis)
    return Logits, Logits.with_shape(infer_labels(Label, Logits, axis, soft_label))


@softmax_with_cross_entropy.grad
def _(g, Logits, Label, Softmax, Loss_grad, Softmax_grad=None, *, soft_label, ignore_index, axis):
    Logits_grad = g.softmax_with_cross_entropy_grad(
        Label, Softmax, Loss_grad, soft_label=soft_label, ignore_index=ignore_index, axis=axis
    )
    if Softmax_grad is not None:
        Logits_grad = g.sum([Logits_grad, g.softmax_grad(Softmax, Softmax_grad, axis=axis)])
    if not (soft_label and g.wanted("Label_grad", ())):
        return Logits_grad
    log_softmax = g.log_softmax(Logits, axis=axis)
    return Logits_grad, g.scale(g.elementwise_mul(log_softmax, Loss_grad), scale=-1.0)


@softmax_with_cross_entropy.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([[0], [2], [1], [2]])), {}
    yield (rng.normal(size=(4, 3)), np.array([0, 2, 1, 2], np.int32)), {}
    yield (rng.normal(size=(4, 3)), np.array([[0], [-100], [1], [2]])), {}
    yield (rng.normal(size=(4, 3)), np.array([[0], [1], [1], [2]])), {"ignore_index": 1}
    yield (rng.normal(size=(2, 5, 3)), rng.integers(0, 5, size=(2, 1, 3))), {"axis": 1}
    yield (rng.normal(size=(2, 5, 3)), rng.integers(0, 5, size=(2, 3))), {"axis": -2}
    yield (rng.normal(size=(4, 3)), rng.uniform(size=(4, 3))), {"soft_label": True}
    yield (rng.normal(size=(3, 4)), rng.uniform(size=(3, 4))), {"soft_label": True, "axis": 0}
    yield (rng.normal(size=(0, 3)), np.zeros((0, 1), np.int64)), {}
    yield (rng.normal(size=(3,)), np.array([1])), {}


@op("Logits_grad", traits={"reports"}, inplace={"Logits_grad": "Softmax"}, gpu="rows.loss",
    rows=Rows(last_axis, BY_ROW, of="Softmax", unless=SOFT))  # fmt: skip
def softmax_with_cross_entropy_grad(
    Label, Softmax, Loss_grad, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1, out=None
):  # fmt: skip
    """(Softmax - one_hot(Label)) * Loss_grad, zero in ignored rows.

    With soft labels (Softmax * sum(Label) - Label) * Loss_grad; Paddle takes the sum to be 1.
    """
    axis = axis % Softmax.ndim
    result = out[0] if out else None
    if soft_label:
        result = np.multiply(Softmax, Label.sum(axis=axis, keepdims=True), out=result)
        np.subtract(result, Label, out=result)
        return np.multiply(result, Loss_grad, out=result)
    numbers = class_numbers(Label, Softmax.ndim, axis).astype(np.intp, copy=False)
    kept = kept_rows(numbers, Softmax.shape[axis], ignore_index)
    result = np.empty_like(Softmax) if result is None else result
    np.copyto(result, Softmax)
    if kept is not None:
        numbers = np.where(kept, numbers, 0)
    np.moveaxis(result, axis, -1)[place_of(numbers)] -= 1
    np.multiply(result, Loss_grad, out=result)
    if kept is not None:
        np.copyto(result, 0, where=~np.expand_dims(kept, axis))
    return result


@softmax_with_cross_entropy_grad.cuda_rows
def _(r):
    p, seed = r.read("Softmax"), r.read("Loss_grad")
    if r.attrs["soft_label"]:
        w = r.read("Label")
        r.total("weight", w)
        r.each("Logits_grad", f"({p} * weight - {w}) * {seed}")
    else:
        r.find_label()
        r.each("Logits_grad", f"label < 0 ? C(0) : ({r.IS_LABEL} ? {p} - C(1) : {p}) * {seed}")


@softmax_with_cross_entropy_grad.infer
def _(Label, Softmax, Loss_grad, *, soft_label, ignore_index, axis):
    require(Softmax.is_float, f"Softmax must be a float, is {Softmax}", DTypeError)
    axis = normalize_axis(axis, Softmax.ndim)
    loss = Softmax.with_shape(infer_labels(Label, Softmax, axis, soft_label))
    require(Loss_grad.accepts(loss), f"Loss_grad must be {loss}, is {Loss_grad}")
    return Softmax


@softmax_with_cross_entropy_grad.grad
def _(g, Label, Softmax, Loss_grad, Logits_grad_grad, *, soft_label, ignore_index, axis):
    """Logits_grad = (a * Softmax - b) * Loss_grad is linear in Softmax, so the rule itself gives a and b."""
    h, attrs = Logits_grad_grad, {"soft_label": soft_label, "ignore_index": ignore_index, "axis": axis}
    slope = g.softmax_with_cross_entropy_grad(Label, Softmax, g.fill_any_like(Loss_grad, value=1.0), **attrs)
    to_loss_grad = g.reduce_sum(g.elementwise_mul(h, slope), axis=(axis,), keepdim=True)
    to_softmax = g.elementwise_sub(
        g.softmax_with_cross_entropy_grad(Label, h, Loss_grad, **attrs),
        g.softmax_with_cross_entropy_grad(Label, g.fill_any_like(h, value=0.0), Loss_grad, **attrs),
    )
    to_label = None
    if soft_label and g.wanted("Label_grad", ()):
        inner = g.reduce_sum(g.elementwise_mul(h, Softmax), axis=(axis,), keepdim=True)
        to_label = g.elementwise_mul(g.elementwise_sub(inner, h), Loss_grad)
    return to_label, to_softmax, to_loss_grad


@softmax_with_cross_entropy_grad.samples
def _(rng):
    scores, loss_grad = rng.normal(size=(4, 3)), rng.normal(size=(4, 1))
    yield (np.array([[0], [-100], [1], [2]]), scores, loss_grad), {}
    yield (np.array([0, 1, 1, 2]), scores, loss_grad), {"ignore_index": 1}
    yield (rng.uniform(size=(4, 3)), scores, loss_grad), {"soft_label": True}
    yield (rng.integers(0, 4, size=(1, 3)), scores, rng.normal(size=(1, 3))), {"axis": 0}
