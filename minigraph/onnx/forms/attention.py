"""Attention with the matrix of its probabilities, after ops/attention/."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.types import int64

from ..nodes import Nodes, Term
from ..registry import form, no_counterpart
from .rows import row_max, row_sum

HIDDEN_WHOLE = -1e3  # a masked_score from which on LogSumExp of a row that is masked throughout is +inf


def _unpacked(CuSeqlensQ: Term | None, Blocks: Term | None, dropout: float, is_test: bool) -> None:
    if CuSeqlensQ is not None:
        raise no_counterpart("packed sequences (CuSeqlensQ)", "export the program for a padded batch")
    if Blocks is not None:
        raise no_counterpart("a table of blocks (Blocks)", "give the positions as a mask")
    if dropout > 0 and not is_test:
        raise no_counterpart("dropout draws random numbers here", "export program.clone(for_test=True)")


def seen_positions(
    g: Nodes, queries: Term, keys: Term, causal: bool, bottom_right: bool, window: tuple[int, ...] | None
) -> Term | None:
    """bool [queries, keys], None where all is seen; the sizes are int64 [1]."""
    if not causal and window is None:
        return None
    zero, one, first = g.const(0, int64), g.const(1, int64), g.ints(0)
    i = g.Unsqueeze(g.Range(zero, g.Squeeze(queries, first), one), g.ints(1))
    j = g.Unsqueeze(g.Range(zero, g.Squeeze(keys, first), one), g.ints(0))
    ahead = j - i - (keys - queries) if bottom_right else j - i
    seen = ahead <= 0 if causal else None
    if window is not None:
        near = (ahead >= -window[0]) & (ahead <= window[1])
        seen = near if seen is None else seen & near
    return seen


def heads_first(g: Nodes, x: Term, layout: str) -> Term:
    """[B, H, S, D] of an array in `layout`; one head where there is no axis of heads."""
    if x.ndim == 3:
        return g.Unsqueeze(x, g.ints(1))
    return g.Transpose(x, perm=(0, 2, 1, 3)) if layout == "bshd" else x


def repeated(g: Nodes, x: Term, own: Term, like: Term, layout: str) -> Term:
    """The heads of K or V, each as often as query heads read it; `own` is x in its layout, `like` is Q in its."""
    axis = 2 if layout == "bshd" else 1
    if own.ndim == 3 or (own.shape[axis] == like.shape[axis] != -1):
        return x
    heads, groups = g.size(own, axis), g.size(like, axis) / g.size(own, axis)
    sizes = g.Shape(x)
    batch, rest = g.Slice(sizes, g.ints(0), g.ints(1)), g.Slice(sizes, g.ints(2), g.ints(4))
    wide = g.Expand(g.Unsqueeze(x, g.ints(2)), g.Concat(batch, heads, groups, rest, axis=0))
    return g.Reshape(wide, g.Concat(batch, heads * groups, rest, axis=0))


def scores_first(g: Nodes, x: Term, rank: int) -> Term:
    """Bias or Mask beside scores [B, H, Sq, Sk], where those of Q may be [B, Sq, Sk]."""
    return g.Unsqueeze(x, g.ints(1)) if rank == 3 == x.ndim else x


@form
def memory_efficient_attention(
    g: Nodes, Q: Term, K: Term, V: Term, Bias: Term | None = None, Mask: Term | None = None,
    CuSeqlensQ: Term | None = None, CuSeqlensK: Term | None = None, Key: Term | None = None,
    Blocks: Term | None = None, *, layout: str, scale: float | None, causal: bool, bottom_right: bool,
    window: tuple[int, ...] | None, masked_score: float, dropout: float, is_test: bool, deterministic: bool,
    block_size: int | None,
) -> Any:  # fmt: skip
    _unpacked(CuSeqlensQ, Blocks, dropout, is_test)
    q, k, v = (heads_first(g, x, layout) for x in (Q, K, V))
    k, v = (repeated(g, x, own, Q, layout) for x, own in ((k, K), (v, V)))
    scores = g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))) * _factor(g, Q, scale)
    scores = scores + scores_first(g, Bias, Q.ndim) if Bias is not None else scores
    hidden = g.like(scores, -math.inf)
    if Mask is not None:
        scores = g.Where(scores_first(g, Mask, Q.ndim), scores, g.like(scores, masked_score))
    at = 1 if Q.ndim == 3 or layout == "bshd" else 2
    seen = seen_positions(g, g.size(Q, at), g.size(K, at), causal, bottom_right, window)
    scores = g.Where(seen, scores, hidden) if seen is not None else scores
    out, log_sum = _weighted(g, scores, v, Mask is not None and -math.inf < masked_score <= HIDDEN_WHOLE, masked_score)
    if Q.ndim == 3:
        return g.Squeeze(out, g.ints(1)), g.Squeeze(log_sum, g.ints(1))
    return (g.Transpose(out, perm=(0, 2, 1, 3)) if layout == "bshd" else out), log_sum


def _factor(g: Nodes, Q: Term, scale: float | None) -> float | Term:
    if scale is not None or Q.shape[-1] > 0:
        return 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    return 1 / g.Sqrt(g.cast(g.size(Q, -1), Q.dtype))


def _weighted(g: Nodes, scores: Term, v: Term, is_finite: bool, masked_score: float) -> tuple[Term, Term]:
    """softmax(scores) v, zeros for a query that sees no key, and the logarithms of its sums."""
    top = row_max(g, scores, -1)
    top = g.Where(g.Equal(top, -math.inf), g.like(top, 0), top)  # -inf - -inf is no number
    powers = g.Exp(scores - top)
    total = row_sum(g, powers, -1)
    weights = powers / g.Where(g.Equal(total, 0), g.like(total, 1), total)
    log_sum = g.Log(total) + top
    if is_finite:
        log_sum = g.Where(g.Equal(top, masked_score), g.like(top, math.inf), log_sum)
    return g.MatMul(weights, v), g.Squeeze(log_sum, g.ints(-1))


@form(exact=True)
def attention_sight(
    g: Nodes, Q: Term, K: Term, CuSeqlensQ: Term | None = None, CuSeqlensK: Term | None = None,
    Key: Term | None = None, Blocks: Term | None = None, *, layout: str, causal: bool, bottom_right: bool,
    window: tuple[int, ...] | None, dropout: float, is_test: bool, block_size: int | None,
) -> Any:  # fmt: skip
    _unpacked(CuSeqlensQ, Blocks, dropout, is_test)
    at, kept_type = 1 if Q.ndim == 3 or layout == "bshd" else 2, g.types["Seen"][0]
    queries, keys = g.size(Q, at), g.size(K, at)
    seen = seen_positions(g, queries, keys, causal, bottom_right, window)
    if seen is None:
        shape = g.Concat(queries, keys, axis=0)
        seen = g.ConstantOfShape(shape, value=np.ones(1, kept_type.dtype), dtype=kept_type.dtype)
    if "Kept" not in g.wanted:
        return seen, None
    dtype = g.types["Kept"][0].dtype
    heads = [] if Q.ndim == 3 else [g.size(Q, 2 if layout == "bshd" else 1)]
    shape = g.Concat(g.size(Q, 0), *heads, queries, keys, axis=0)
    return seen, g.ConstantOfShape(shape, value=np.ones(1, dtype), dtype=dtype)
