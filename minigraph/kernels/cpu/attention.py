"""Attention on a CPU in blocks of queries and keys (Rabe and Staats, arXiv 2112.05682): memory O(S).

A block of scores lives at a time. Forward keeps for each query the largest score so far and the sum of
exponentials below it, and rescales when a larger one comes. Backward computes the scores again and the
probabilities from LogSumExp; where a Bias puts all scores of a query far from 0, LogSumExp rounds away how many
keys share them, so their sum of exponentials is computed again, too. The operators
of ops/attention/ say what is computed.

What a query sees by causal, window and packed sequences is an interval of keys, so blocks outside are
never computed. Of a table of blocks only those are computed that some query of a block of queries sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import require
from minigraph.kernels import philox

from .product import product

FAR = 1e3  # a score beyond which LogSumExp is no more exact enough
HIDDEN_WHOLE = -FAR  # a masked_score at which LogSumExp is +inf where Mask hides all keys of a query
SCORES = 2**18  # elements of a block of scores
QUERIES = 256  # of a block
ROWS_AT_LEAST = 32  # queries of a block where there is a table of blocks
DRAWS = 2**22  # elements of whole rows whose random numbers are drawn together


def heads_first(x: np.ndarray, layout: str) -> np.ndarray:
    """[B, H, S, D] of an array in `layout`, as a view."""
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 2, 1, 3) if layout == "bshd" else x


def as_given(x: np.ndarray, rank: int, layout: str) -> np.ndarray:
    """The reverse of heads_first."""
    if rank == 3:
        return x[:, 0]
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if layout == "bshd" else x


def scores_first(x: np.ndarray | None, rank: int) -> np.ndarray | None:
    """A Bias or Mask with all four axes of the scores."""
    if x is None:
        return None
    x = x.reshape((1,) * (rank - x.ndim) + x.shape)
    return x[:, None] if rank == 3 else x


def scale_of(scale: float | None, head_size: int) -> float:
    """The factor on Q K^T."""
    return 1 / math.sqrt(head_size) if scale is None else scale


def check_lengths(cumulative: np.ndarray, total: int, name: str) -> None:
    """Cumulative lengths start at 0, do not fall, and end within the array."""
    require(cumulative[0] == 0, f"{name} starts at {cumulative[0]}, not at 0")
    falls = np.flatnonzero(np.diff(cumulative) < 0)
    require(
        not falls.size, f"{name} must not decrease, [{falls[:1].sum() + 1}] is less than the element before",
        hint="it holds cumulative lengths: 0, n0, n0 + n1, ...",
    )  # fmt: skip
    require(cumulative[-1] <= total, f"{name} ends at {cumulative[-1]}, there are {total} positions")


def weighted(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """weights @ rows, in which a weight of 0 takes nothing, not even NaN."""
    finite = np.isfinite(rows)
    if finite.all():
        return product(weights, rows)
    touched = (weights != 0).astype(rows.dtype) @ (~finite).astype(rows.dtype) != 0
    return np.where(touched, weights @ rows, weights @ np.where(finite, rows, 0))


def intervals(
    queries: int, keys: int, causal: bool, bottom_right: bool, window: tuple[int, ...] | None,
    lengths_q: np.ndarray | None, lengths_k: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(first, last + 1) key that each query sees by causal, window and packed sequences."""
    place, start, end, shift = np.arange(queries), np.zeros(queries, int), np.full(queries, keys), keys - queries
    if lengths_q is not None and lengths_k is not None:
        check_lengths(lengths_q, queries, "CuSeqlensQ")
        check_lengths(lengths_k, keys, "CuSeqlensK")
        sizes_q, sizes_k = np.diff(lengths_q), np.diff(lengths_k)
        rest = queries - int(lengths_q[-1])  # positions of no sequence
        place = place - np.append(np.repeat(lengths_q[:-1], sizes_q), np.zeros(rest, int))
        start = np.append(np.repeat(lengths_k[:-1], sizes_q), np.zeros(rest, int))
        end = np.append(np.repeat(lengths_k[1:], sizes_q), np.zeros(rest, int))
        shift = np.append(np.repeat(sizes_k - sizes_q, sizes_q), np.zeros(rest, int))
    diagonal = start + place + (shift if bottom_right else 0)
    first, last = start, end
    if window is not None:
        first, last = np.maximum(first, diagonal - window[0]), np.minimum(last, diagonal + window[1] + 1)
    if causal:
        last = np.minimum(last, diagonal + 1)
    first = np.minimum(first, end)
    return first, np.maximum(last, first)


class ScoreBlock(NamedTuple):
    """Part of the scores: slices of batch, head of K, query."""

    batch: slice
    head: slice
    query: slice


class AttentionCall:
    """One call with all arrays as views [B, heads of K, heads of Q for each, S, D], and its blocks."""

    def __init__(
        self, Q: np.ndarray, K: np.ndarray, V: np.ndarray, Bias: Any, Mask: Any, CuSeqlensQ: Any, CuSeqlensK: Any,
        Key: Any, Blocks: Any, *, layout: str, scale: float | None, causal: bool, bottom_right: bool,
        window: tuple[int, ...] | None, masked_score: float, dropout: float, is_test: bool, deterministic: bool = False,
        block_size: int | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.layout = Q.ndim, layout
        self.scale = Q.dtype.type(scale_of(scale, Q.shape[-1]))
        self.masked_score = Q.dtype.type(masked_score)
        self.heads = heads_first(K, layout).shape[1]
        self.q, self.k, self.v = (self.view(x) for x in (Q, K, V))
        self.groups = self.q.shape[2]
        self.bias, self.mask = (self._grouped(scores_first(x, Q.ndim)) for x in (Bias, Mask))
        self.queries, self.keys = self.q.shape[3], self.k.shape[3]
        self.first, self.last = intervals(
            self.queries, self.keys, causal, bottom_right, window, CuSeqlensQ, CuSeqlensK
        )
        self.block_size = block_size or max(self.keys, 1)
        self.table = None if Blocks is None else self._grouped(Blocks.reshape((1,) * (4 - Blocks.ndim) + Blocks.shape))
        self.marks_hidden = Mask is not None and -math.inf < masked_score <= HIDDEN_WHOLE
        self.key = tuple(int(w) for w in Key) if dropout > 0 and not is_test else None
        self.dropout, self.finite = dropout, bool(np.isfinite(V).all())

    def view(self, x: np.ndarray) -> np.ndarray:
        """[B, heads of K, heads of x for each, S, D]"""
        x = heads_first(x, self.layout)
        return x.reshape(x.shape[0], self.heads, x.shape[1] // max(self.heads, 1), *x.shape[2:])

    def _grouped(self, x: np.ndarray | None) -> np.ndarray | None:
        if x is None:
            return None
        heads = (1, 1) if x.shape[1] == 1 else (self.heads, self.groups)
        return x.reshape(x.shape[0], *heads, *x.shape[2:])

    def blocks(self) -> Iterator[ScoreBlock]:
        """Blocks of queries, several heads and batches together where those are short."""
        batch, heads = self.q.shape[:2]
        keys = max(min(self.keys, SCORES // QUERIES), 1)
        limit = SCORES if self.key is None else min(SCORES, DRAWS * keys // max(self.keys, 1))
        rows = max(limit // keys, 1)  # of scores, of all heads and batches
        queries = min(self.queries, max(rows // max(self.groups, 1), 1), QUERIES)
        if 0 in (batch, heads, queries, self.groups):
            return
        if self.table is not None:  # only queries of a block see the same keys
            queries = min(queries, max(ROWS_AT_LEAST // self.block_size, 1) * self.block_size)
        shared = self.table is None or self.table.shape[1:3] == (1, 1)  # do heads see the same keys?
        some_heads = min(heads, max(rows // (self.groups * queries), 1)) if queries == self.queries and shared else 1
        some = 1
        if some_heads == heads or self.table is not None:
            some = min(batch, max(rows // (self.groups * queries * some_heads), 1))
        for b in range(0, batch, some):
            for h in range(0, heads, some_heads):
                for i in range(0, self.queries, queries):
                    yield ScoreBlock(
                        slice(b, min(b + some, batch)), slice(h, min(h + some_heads, heads)),
                        slice(i, min(i + queries, self.queries)),
                    )  # fmt: skip

    def key_slices(self, block: ScoreBlock) -> Iterator[slice]:
        """Pieces of the keys that some query of the block sees."""
        first, last = int(self.first[block.query].min()), int(self.last[block.query].max())
        for begin, end in [(first, last)] if self.table is None else self._runs(block, first, last):
            for j in range(begin, end, SCORES // QUERIES):
                yield slice(j, min(j + SCORES // QUERIES, end))

    def _rows(self, block: ScoreBlock) -> np.ndarray:
        """What the table says of each query of a block, [1, heads, heads of each, queries, columns]."""
        assert self.table is not None
        heads = block.head if self.table.shape[1] > 1 else slice(None)
        return self.table[:, heads, :, np.arange(block.query.start, block.query.stop) // self.block_size]

    def _runs(self, block: ScoreBlock, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Intervals of [first, last) that some query of the block sees by the table, those beside each other as one."""
        columns = self._rows(block).any(axis=(0, 1, 2, 3))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], columns, [False]]).astype(np.int8)))
        for begin, end in edges.reshape(-1, 2) * self.block_size:
            if max(begin, first) < min(end, last):
                yield max(int(begin), first), min(int(end), last)

    def counts(self, block: ScoreBlock) -> np.ndarray:
        """How many keys each query of a block sees, [..., queries, 1], at least 1."""
        first, last = self.first[block.query, None], self.last[block.query, None]
        if self.table is None:
            return np.maximum(last - first, 1)
        begin = np.arange(self.table.shape[-1]) * self.block_size
        widths = np.maximum(np.minimum(last, begin + self.block_size) - np.maximum(first, begin), 0)
        return np.maximum((self._rows(block) * widths).sum(axis=-1, keepdims=True), 1)

    def scores(self, block: ScoreBlock, keys: slice) -> np.ndarray:
        """Those of a block with some keys; -inf where a query does not see a key."""
        b, h, i = block
        s = product(self.q[b, h, :, i], self.k[b, h, :, keys].swapaxes(-1, -2))
        s *= self.scale
        if self.bias is not None:
            s += part(self.bias, block, keys)
        if self.mask is not None:
            np.copyto(s, self.masked_score, where=~part(self.mask, block, keys))
        if self.first[i].max() > keys.start or self.last[i].min() < keys.stop:
            j = np.arange(keys.start, keys.stop)
            seen = (j >= self.first[i, None]) & (j < self.last[i, None])
            np.copyto(s, s.dtype.type(-math.inf), where=~seen)
        if self.table is not None:
            seen = self._rows(block)[..., np.arange(keys.start, keys.stop) // self.block_size]
            np.copyto(s, s.dtype.type(-math.inf), where=~seen)
        return s

    def started(
        self, block: ScoreBlock, log_sum: np.ndarray, out_grad: np.ndarray, sums_grad: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What backward subtracts from scores: LogSumExp, but of rows far from 0 the largest score. And both gradients.

        Exponentials below that are not yet divided by their sum; the gradients are, in which every result is linear.
        A LogSumExp of +inf is far, too, where keys that Mask does not hide may count little or nothing.
        """
        if self.bias is not None:
            far = (log_sum != -math.inf) & (abs(log_sum) > FAR)
        elif self.mask is not None:
            far = (log_sum == math.inf) & part(self.mask, block, slice(0, self.keys)).any(axis=-1, keepdims=True)
        else:
            far = np.zeros((), bool)
        if not far.any():
            return log_sum, out_grad, sums_grad
        largest, total = np.full_like(log_sum, -math.inf), np.zeros_like(log_sum)
        for keys in self.key_slices(block):
            largest, total, _ = raised(self.scores(block, keys), largest, total)
        divisor = np.where(far, total, 1)
        return np.where(far, largest, log_sum), out_grad / divisor, sums_grad / divisor

    def kept(self, block: ScoreBlock) -> np.ndarray | None:
        """Which probabilities of the block's rows are kept, of all keys, uint8; None without dropout."""
        if self.key is None:
            return None
        b, h, i = block
        rows, all_heads = i.stop - i.start, self.heads * self.groups
        kept = np.empty((b.stop - b.start, h.stop - h.start, self.groups, rows, self.keys), np.uint8)
        for at in np.ndindex(kept.shape[:3]):
            head = (h.start + at[1]) * self.groups + at[2]
            row = ((b.start + at[0]) * all_heads + head) * self.queries + i.start
            kept[at] = philox.keep_mask((*self.key, row * self.keys), (rows, self.keys), self.dropout)
        return kept

    def drop(self, x: np.ndarray, kept: np.ndarray | None, keys: slice) -> None:
        """Multiply by the dropout factors."""
        if kept is not None:
            x *= kept[..., keys]
            x *= x.dtype.type(1 / (1 - self.dropout))

    def product(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """weights @ rows, in which a weight of 0 takes nothing."""
        return product(weights, rows) if self.finite else weighted(weights, rows)


def counted(sums_grad: np.ndarray | None, log_sum: np.ndarray) -> np.ndarray:
    """The gradient of LogSumExp as backward counts it: 0 where LogSumExp is infinite, or where there is none."""
    if sums_grad is None:
        return np.broadcast_to(log_sum.dtype.type(0), log_sum.shape)
    return np.where(np.isfinite(log_sum), sums_grad.reshape(log_sum.shape), 0)


def raised(s: np.ndarray, largest: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest score so far, the sum of exponentials below it, the factor of what was summed before.

    Leaves the exponentials of the scores `s` in their place.
    """
    new = np.maximum(largest, s.max(axis=-1, keepdims=True))
    below = np.where(new == -math.inf, 0, new)
    s -= below
    np.exp(s, out=s)
    shrink = np.exp(largest - below)
    return new, total * shrink + s.sum(axis=-1, keepdims=True), shrink


def part(x: np.ndarray, block: ScoreBlock, keys: slice) -> np.ndarray:
    """What a block takes of an array that broadcasts to the scores."""
    b, h, i = block
    group = slice(None)
    return x[tuple(s if size > 1 else slice(None) for s, size in zip((b, h, group, i, keys), x.shape, strict=True))]


def add_summed(target: np.ndarray, slopes: np.ndarray) -> None:
    """Add gradients of scores to those of an array that broadcasts to them."""
    axes = tuple(a for a, size in enumerate(target.shape) if size == 1 and slopes.shape[a] != 1)
    target += slopes.sum(axis=axes, keepdims=True)


def forward(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Bias: Any = None, Mask: Any = None, CuSeqlensQ: Any = None,
    CuSeqlensK: Any = None, Key: Any = None, Blocks: Any = None, *, needs: Any = ("Out", "LogSumExp"), out: Any = None,
    **attrs: Any,
) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """Out and LogSumExp of memory_efficient_attention."""
    call = AttentionCall(Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, **attrs)
    Out, Sums = out or (None, None)
    Out = np.empty((*Q.shape[:-1], V.shape[-1]), Q.dtype) if Out is None else Out
    if "LogSumExp" in needs and Sums is None:
        heads = () if call.rank == 3 else (call.heads * call.groups,)
        Sums = np.empty((Q.shape[0], *heads, call.queries), Q.dtype)
    out, log_sum = call.view(Out), None if Sums is None else Sums.reshape(call.q.shape[:-1])
    for block in call.blocks():
        b, h, i = block
        largest = np.full((*out[b, h, :, i].shape[:-1], 1), -math.inf, Q.dtype)
        total, sums = np.zeros_like(largest), np.zeros(out[b, h, :, i].shape, Q.dtype)
        kept = call.kept(block)
        for keys in call.key_slices(block):
            s = call.scores(block, keys)
            largest, total, shrink = raised(s, largest, total)
            call.drop(s, kept, keys)
            sums *= shrink
            sums += call.product(s, call.v[b, h, :, keys])
        out[b, h, :, i] = sums / np.where(total == 0, 1, total)
        if log_sum is None:
            continue
        rows = np.log(total) + np.where(total == 0, 0, largest)
        if call.marks_hidden:
            rows[largest == call.masked_score] = math.inf
        log_sum[b, h, :, i] = rows[..., 0]
    return Out, Sums


def _probabilities(scores: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(exp(scores - start) in place of the scores, 0 where these are hidden; what is hidden)."""
    hidden = scores == -math.inf
    scores -= start
    np.exp(scores, out=scores)
    scores[hidden] = 0
    return scores, hidden


def _zeros(like: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return np.zeros(like.shape, like.dtype)
    out.fill(0)
    return out


def backward(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Out: np.ndarray, LogSumExp: np.ndarray, Out_grad: np.ndarray,
    Bias: Any = None, Mask: Any = None, CuSeqlensQ: Any = None, CuSeqlensK: Any = None, Key: Any = None,
    Blocks: Any = None, LogSumExp_grad: Any = None, *, needs: Any = ("Q_grad", "K_grad", "V_grad", "Bias_grad"),
    out: Any = None, **attrs: Any,
) -> tuple[np.ndarray | None, ...]:  # fmt: skip
    """Gradients of memory_efficient_attention; those in `needs`."""
    call = AttentionCall(Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, **attrs)
    call.finite = all(bool(np.isfinite(x).all()) for x in (Q, K, V, Out_grad, LogSumExp_grad) if x is not None)
    wanted = {"Q_grad": Q, "K_grad": K, "V_grad": V}
    planned = dict(zip(wanted, out or (None, None, None), strict=False))
    grads = {slot: _zeros(x, planned[slot]) for slot, x in wanted.items() if slot in needs}
    to_q, to_k, to_v = (call.view(grads[slot]) if slot in grads else None for slot in wanted)
    to_bias = np.zeros(call.bias.shape, Q.dtype) if call.bias is not None and "Bias_grad" in needs else None
    out, out_grad = call.view(Out), call.view(Out_grad)
    log_sum = LogSumExp.reshape(call.q.shape[:-1])[..., None]
    sums_grad = counted(LogSumExp_grad, log_sum)
    for block in call.blocks():
        b, h, i = block
        rows, given = call.q[b, h, :, i], (x[b, h, :, i] for x in (log_sum, out_grad, sums_grad))
        start, d, to_sums = call.started(block, *given)
        delta = (d * out[b, h, :, i]).sum(axis=-1, keepdims=True) - to_sums
        kept = call.kept(block)
        for keys in call.key_slices(block):
            p, hidden = _probabilities(call.scores(block, keys), start)
            slopes = product(d, call.v[b, h, :, keys].swapaxes(-1, -2))
            call.drop(slopes, kept, keys)
            slopes -= delta
            slopes *= p
            if not call.finite:
                slopes[p == 0] = 0
            if call.mask is not None:
                np.copyto(slopes, 0, where=~part(call.mask, block, keys))
            if to_v is not None:
                if call.marks_hidden:
                    whole = (start == math.inf) & ~hidden
                    np.copyto(p, 1 / call.counts(block), where=whole)
                call.drop(p, kept, keys)
                to_v[b, h, :, keys] += call.product(p.swapaxes(-1, -2), d).sum(axis=2, keepdims=True)
            if to_bias is not None:
                add_summed(part(to_bias, block, keys), slopes)
            slopes *= call.scale
            if to_q is not None:
                to_q[b, h, :, i] += call.product(slopes, call.k[b, h, :, keys])
            if to_k is not None:
                to_k[b, h, :, keys] += call.product(slopes.swapaxes(-1, -2), rows).sum(axis=2, keepdims=True)
    Bias_grad = None if to_bias is None else to_bias.reshape(Bias.shape).astype(Bias.dtype)
    return grads.get("Q_grad"), grads.get("K_grad"), grads.get("V_grad"), Bias_grad
