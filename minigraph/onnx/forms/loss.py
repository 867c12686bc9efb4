"""Losses of class numbers, after ops/rows/loss.py and linear_cross_entropy.py."""

from __future__ import annotations

from typing import Any

from minigraph.types import int64

from ..nodes import Nodes, Term
from ..registry import form, no_counterpart
from .products import turned
from .rows import row_max, row_sum


def own_class(g: Nodes, scores: Term, Label: Term, rank: int, axis: int, ignore_index: int) -> tuple[Term, Term]:
    """The score of each row's class, with size 1 at `axis`, and which rows are not ignored."""
    numbers = g.cast(Label, int64)
    numbers = numbers if Label.ndim == rank else g.Unsqueeze(numbers, g.ints(axis))
    kept = g.Not(g.Equal(numbers, ignore_index))
    return g.GatherElements(scores, g.Where(kept, numbers, g.const(0, int64)), axis=axis), kept


@form
def softmax_with_cross_entropy(
    g: Nodes, Logits: Term, Label: Term, *, soft_label: bool, ignore_index: int, axis: int
) -> Any:
    axis = axis % Logits.ndim
    shifted = Logits - row_max(g, Logits, axis)
    powers = g.Exp(shifted)
    total = row_sum(g, powers, axis)
    zero = g.like(Logits, 0)
    if soft_label:
        weighted = g.Where(g.Equal(Label, 0), zero, Label * shifted)
        loss = g.Log(total) * row_sum(g, Label, axis) - row_sum(g, weighted, axis)
    else:
        own, kept = own_class(g, shifted, Label, Logits.ndim, axis, ignore_index)
        loss = g.Where(kept, g.Log(total) - own, zero)
    return powers / total, loss


@form
def fused_linear_cross_entropy(
    g: Nodes, X: Term, W: Term, Label: Term, Bias: Term | None = None, DLoss: Term | None = None,
    DSquare: Term | None = None, *, trans_w: bool, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, token_scaling: bool, **chunks: Any,
) -> Any:  # fmt: skip
    """With all scores at once; the gradients, which a pass lets it compute besides, belong to training."""
    if g.wanted & {"DX", "DW", "DBias"}:
        raise no_counterpart("it also computes gradients", "export program.clone(for_test=True)")
    z = g.MatMul(X, turned(g, W, trans_w))
    z = z + Bias if Bias is not None else z
    z = softcap * g.Tanh(z / softcap) if softcap is not None else z
    top = row_max(g, z, -1)
    lse = top + g.Log(row_sum(g, g.Exp(z - top), -1))
    own, kept = own_class(g, z, Label, X.ndim, X.ndim - 1, ignore_index)
    target = own * (1 - label_smoothing)
    if label_smoothing:
        target = target + label_smoothing * g.ReduceMean(z, g.ints(-1), keepdims=1)
    zero = g.like(X, 0)
    loss, z_term = lse - target, z_loss * lse * lse
    if token_scaling:
        share = g.Exp(own - lse)
        loss, z_term = loss * share, z_term * share
    z_term = g.Where(kept, z_term, zero)
    prediction = g.ArgMax(z, axis=-1, keepdims=1)
    return g.Where(kept, loss, zero) + z_term, z_term, prediction, None, None, None, lse * lse
