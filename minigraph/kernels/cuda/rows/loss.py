"""Cross entropy of scores and its gradient, with class numbers or class weights as labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from .rows import RowOperator, bind_rows


def softmax_with_cross_entropy(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Softmax and Loss in one launch; without a reader of Softmax nothing is written but Loss."""
    Logits, Label, Softmax, Loss = ins["Logits"], ins["Label"], outs.get("Softmax"), outs.get("Loss")
    soft = attrs["soft_label"]
    loss = Loss if Loss is not None else Logits
    facts = {"KIND": "SOFT" if soft else "HARD", "WRITES": int(Softmax is not None), "LOSS": int(Loss is not None)}
    operator = _operator(binder, facts, Logits, Label, loss, attrs, inputs=2 if soft else 1)
    result = Softmax if Softmax is not None else Logits
    bind_rows(binder, operator, Logits, Label if soft else Logits, result, attrs["axis"])


def softmax_with_cross_entropy_grad(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Logits_grad = (Softmax - one_hot(Label)) * Loss_grad: each element read once, written once."""
    Label, Softmax = ins["Label"], ins["Softmax"]
    soft = attrs["soft_label"]
    facts = {"KIND": "SOFT_GRAD" if soft else "HARD_GRAD", "WRITES": 1, "LOSS": 0}
    operator = _operator(binder, facts, Softmax, Label, ins["Loss_grad"], attrs, inputs=2 if soft else 1)
    other = Label if soft else Softmax
    bind_rows(binder, operator._replace(reduces=soft), Softmax, other, outs["Logits_grad"], attrs["axis"])


def no_class(classes: int, attrs: Mapping[str, Any]) -> str:
    """What is wrong with a label that a kernel reports."""
    return f"not a class in [0, {classes}) and not ignore_index {attrs['ignore_index']}"


def _operator(
    binder: Binder, facts: Mapping[str, Any], scores: Buffer, Label: Buffer, loss: Buffer, attrs: Mapping[str, Any],
    inputs: int,
) -> RowOperator:  # fmt: skip
    wrong = no_class(scores.shape[attrs["axis"]], attrs)
    arguments = Label, loss, i64(attrs["ignore_index"]), *binder.report(wrong)
    return RowOperator("rows/loss.cu", {**facts, "L": CUDA_TYPES[Label.dtype]}, arguments, inputs)
