"""Attention without the matrix of its probabilities in memory (xFormers PR #281), and its dense definition.

    S = scale * Q K^T + Bias      scores, [B, H, Sq, Sk]
    Out = softmax(S) V            over the keys that a query sees

Layouts, by the attribute `layout`; an array of rank 3 is [B, S, D] with one head in both:
    bshd   [B, S, H, D]           bhsd   [B, H, S, D]
Q has G times as many heads as K and V: query head h reads their head h // G. V's D may be another.

What a query sees:
    Mask      a position where it is False has the score `masked_score` instead: -inf, or a finite
              number, as `where(mask, scores, -1e9)` says it
    causal    key j <= query i; with bottom_right the last query sees the last key: j <= i + Sk - Sq
    window    (left, right): i - left <= j <= i + right, measured from the same diagonal
    CuSeqlensQ, CuSeqlensK   int [N + 1], cumulative lengths: N sequences packed one after the other into
              B = 1. A query sees the keys of its own sequence; causal and window count within it.
              What lies behind the last length belongs to no sequence and is not read.
    Blocks    bool [ceil(Sq / block_size), ceil(Sk / block_size)], for each head [H, ...]: where it is False no
              query of these block_size queries sees a key of these block_size keys. Such blocks are not computed
A query that sees no key gives zeros (softmax would give NaN), and values at keys that a query does not
see never reach its result, NaN included (on tensor cores they count 0 times, so NaN and infinity at hidden
keys beside seen ones show).

Bias and Mask broadcast to [B, H, Sq, Sk], of rank 3 to [B, Sq, Sk]. Key is random_key's output, read where
dropout > 0: probability (b, h, q, k) is kept by the random number of that element of a [B, H, Sq, Sk] array,
as the operator dropout would. LogSumExp [B, H, Sq] ([B, Sq]) is the natural logarithm of sum(exp(S)) over
the keys seen, dropped ones too, -inf where there is none; float64 for float64, else float32. It is written where
it is read, and gradients flow through it.
Where Mask hides all of them, or all whose Bias is not lower still, and masked_score is -1e3 or less, it is
+inf, since masked_score + log(n) would round log(n) away: their probabilities are 1 / n. No gradient flows
through an infinite LogSumExp, whatever it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import BROADCAST, COUNT, EMPTY, MIXED_TYPES, RANK
from minigraph.kernels import philox
from minigraph.kernels.cpu.attention import (
    HIDDEN_WHOLE,
    as_given,
    check_lengths,
    heads_first,
    scale_of,
    scores_first,
    weighted,
)
from minigraph.opdef import Ints, op
from minigraph.types import INTS, TensorType, bool_, float32, float64, int64

LAYOUTS = ("bshd", "bhsd")
SCORE_AXES = {3: ("batch", "query", "key"), 4: ("batch", "head", "query", "key")}


def in_sequence(size: int, cumulative: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sequence, place in it, its length) of each packed position; sequence -1 behind the last one."""
    place = np.arange(size)
    sequence = np.searchsorted(cumulative, place, side="right") - 1
    inside = sequence < len(cumulative) - 1
    at = np.where(inside, sequence, 0)
    lengths = np.append(np.diff(cumulative), 0)
    return np.where(inside, sequence, -1), place - cumulative[at], lengths[at]


def seen_positions(
    queries: int, keys: int, causal: bool, bottom_right: bool, window: Ints | None,
    lengths_q: np.ndarray | None, lengths_k: np.ndarray | None, blocks: np.ndarray | None, block_size: int | None,
) -> np.ndarray:  # fmt: skip
    """bool [queries, keys], of blocks for each head [heads, queries, keys]: what is seen, position by position."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    shift, seen = keys - queries, np.ones((queries, keys), np.bool_)
    if lengths_q is not None and lengths_k is not None:
        sequence_q, i, size_q = (x[:, None] for x in in_sequence(queries, lengths_q))
        sequence_k, j, size_k = (x[None, :] for x in in_sequence(keys, lengths_k))
        shift, seen = size_k - size_q, (sequence_q == sequence_k) & (sequence_q >= 0)
    ahead = j - i - (shift if bottom_right else 0)
    if causal:
        seen &= ahead <= 0
    if window is not None:
        seen &= (ahead >= -window[0]) & (ahead <= window[1])
    return seen if blocks is None or block_size is None else seen & positions_of(blocks, block_size, queries, keys)


def positions_of(blocks: np.ndarray, size: int, queries: int, keys: int) -> np.ndarray:
    """A table of blocks [..., rows, columns], position by position."""
    return blocks[..., np.arange(queries)[:, None] // size, np.arange(keys)[None, :] // size]


class Dense(NamedTuple):
    """All scores of one call as arrays [B, H, Sq, Sk]: what the operator avoids, and what defines it.

    K, V     each head as often as query heads read it, `groups` times
    scores   -inf where a query does not see a key
    drawn    where Mask lets the scores of Q and K through, True or an array
    kept     factors of the probabilities: 0 where dropped, else 1 / (1 - p); 1 without dropout
    """

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    scores: np.ndarray
    drawn: np.ndarray | bool
    kept: np.ndarray | float
    scale: float
    groups: int


def dense(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Bias: Any, Mask: Any, CuSeqlensQ: Any, CuSeqlensK: Any, Key: Any,
    Blocks: Any, *, layout: str, scale: float | None, causal: bool, bottom_right: bool, window: Ints | None,
    masked_score: float, dropout: float, is_test: bool, block_size: int | None,
) -> Dense:  # fmt: skip
    """The scores of a call, heads of K and V repeated for their groups of query heads."""
    q, k, v = (heads_first(x, layout) for x in (Q, K, V))
    groups = q.shape[1] // k.shape[1] if k.shape[1] else 1
    keys, values = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    factor = scale_of(scale, Q.shape[-1])
    scores = (q @ keys.swapaxes(-1, -2)) * q.dtype.type(factor)
    bias, mask = scores_first(Bias, Q.ndim), scores_first(Mask, Q.ndim)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, scores.dtype.type(masked_score))
    for lengths, name, size in ((CuSeqlensQ, "CuSeqlensQ", q.shape[2]), (CuSeqlensK, "CuSeqlensK", k.shape[2])):
        if lengths is not None:
            check_lengths(lengths, size, name)
    seen = seen_positions(
        q.shape[2], k.shape[2], causal, bottom_right, window, CuSeqlensQ, CuSeqlensK, Blocks, block_size
    )
    kept: Any = 1.0
    if dropout > 0 and not is_test:
        mask_of_draws = philox.keep_mask(tuple(int(w) for w in Key), scores.shape, dropout)
        kept = mask_of_draws * scores.dtype.type(1 / (1 - dropout))
    scores = np.where(seen, scores, scores.dtype.type(-math.inf))
    return Dense(q, keys, values, scores, True if mask is None else mask, kept, factor, groups)


@op(
    "Out, LogSumExp?", cpu="minigraph.kernels.cpu.attention:forward", gpu="attention.attention", strided="QKV",
    traits={"infinite", "reports"},
)  # fmt: skip
def memory_efficient_attention(
    Q, K, V, Bias=None, Mask=None, CuSeqlensQ=None, CuSeqlensK=None, Key=None, Blocks=None, *, layout: str = "bshd",
    scale: float | None = None, causal: bool = False, bottom_right: bool = False, window: Ints | None = None,
    masked_score: float = -math.inf, dropout: float = 0.0, is_test: bool = False, deterministic: bool = False,
    block_size: int | None = None, needs=("Out", "LogSumExp"),
):  # fmt: skip
    """softmax(scale * Q K^T + Bias) V over the keys that each query sees; see the top of this file.

    scale    1 / sqrt(D) for None
    dropout  the probability with which a probability is dropped; the others are divided by 1 - dropout
    is_test  inference: nothing is dropped
    deterministic   no kernel may compute this or its gradient whose results do not repeat bit by bit. Those here
             always do
    block_size  queries, and keys, of a block of Blocks
    """
    d = dense(
        Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, layout=layout, scale=scale, causal=causal,
        bottom_right=bottom_right, window=window, masked_score=masked_score, dropout=dropout, is_test=is_test,
        block_size=block_size,
    )  # fmt: skip
    largest = d.scores.max(axis=-1, keepdims=True, initial=-math.inf)
    largest = np.where(largest == -math.inf, 0, largest)
    weights = np.exp(d.scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    out = weighted(weights / np.where(total == 0, 1, total) * d.kept, d.V)
    with np.errstate(divide="ignore"):  # -inf where no key is seen
        log_sum = np.log(total) + largest
    if Mask is not None and -math.inf < masked_score <= HIDDEN_WHOLE:
        log_sum = np.where(largest == largest.dtype.type(masked_score), math.inf, log_sum)
    sums = log_sum[..., 0].astype(statistics_type(Q.dtype)) if "LogSumExp" in needs else None
    return as_given(out, Q.ndim, layout), sums[:, 0] if sums is not None and Q.ndim == 3 else sums


def statistics_type(dtype: np.dtype) -> np.dtype:
    """The type of LogSumExp."""
    return float64 if dtype == float64 else float32


@memory_efficient_attention.infer
def _(
    Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, *, layout, scale, causal, bottom_right, window,
    masked_score, dropout, is_test, deterministic, block_size,
):  # fmt: skip
    check_types(Q, K, V, Bias, Mask)
    check_attributes(layout, scale, window, masked_score, dropout)
    heads, at = (2, 1) if layout == "bshd" else (1, 2)
    if Q.ndim == 3:
        heads, at = 0, 1  # one head: the batch stands in for it below
    for name, t, others in (("K", K, (0, 3)), ("V", V, (0,))):
        require(t.ndim == Q.ndim, f"Q has rank {Q.ndim}, {name} has rank {t.ndim}", RANK)
        for axis in {min(a, Q.ndim - 1) for a in others}:
            _same(f"axis {axis} of Q and {name}", Q.shape[axis], t.shape[axis])
    for axis in {heads, at}:
        _same(f"axis {axis} of K and V", K.shape[axis], V.shape[axis])
    require(Q.shape[-1] != 0, f"the heads of Q have size 0: {Q}", EMPTY)
    if Q.ndim == 4:
        q, k = Q.shape[heads], K.shape[heads]
        require(
            -1 in (q, k) or (q == 0 if k == 0 else q % k == 0),
            f"Q has {q} heads, which is no multiple of the {k} of K and V", COUNT,
        )
    scores = scores_shape(Q.shape, K.shape, layout)
    for name, t in (("Bias", Bias), ("Mask", Mask)):
        if t is not None:
            check_broadcast(name, t, scores)
    check_sequences(Q, CuSeqlensQ, CuSeqlensK)
    check_blocks(Blocks, block_size, scores, CuSeqlensQ)
    if dropout > 0 and not is_test:
        require(Key is not None, f"dropout {dropout} needs Key", hint="random_key() makes one")
    if Key is not None:
        require(Key.dtype == int64 and Key.shape in ((3,), (-1,)), f"Key must be i64[3], is {Key}")
    return Q.with_shape((*Q.shape[:-1], V.shape[-1])), TensorType(scores[:-1], statistics_type(Q.dtype))


@memory_efficient_attention.flops
def _(types, attrs):
    """Two products of all scores, also of those that a mask hides."""
    scores = math.prod(scores_shape(types["Q"].shape, types["K"].shape, attrs["layout"]))
    return 2 * scores * (types["Q"].shape[-1] + types["V"].shape[-1])


def scores_shape(q: tuple[int, ...], k: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """[B, H, Sq, Sk] of the shapes of Q and K, [B, Sq, Sk] of rank 3."""
    if len(q) == 3:
        return (*q[:2], k[1])
    heads, at = (2, 1) if layout == "bshd" else (1, 2)
    return q[0], q[heads], q[at], k[at]


def _same(what: str, a: int, b: int) -> None:
    require(-1 in (a, b) or a == b, f"{what}: {a} and {b}")


def check_types(Q: TensorType, K: TensorType, V: TensorType, Bias: TensorType | None, Mask: TensorType | None) -> None:
    """Data types, and the rank of Q."""
    require(Q.ndim in (3, 4), f"Q must have rank 3 or 4, is {Q}", RANK)
    require(Q.is_float, f"Q must be a float, is {Q.dtype}", DTypeError)
    for name, t in (("K", K), ("V", V)):
        require(t.dtype == Q.dtype, f"{name} is {t.dtype}, Q is {Q.dtype}", MIXED_TYPES, "cast one of them")
    if Bias is not None:
        fits = Bias.dtype == Q.dtype or (Bias.dtype == float32 and Q.dtype.itemsize == 2)
        hint = "a bool array is a Mask" if Bias.dtype == bool_ else "cast it"
        require(fits, f"Bias is {Bias.dtype}, Q is {Q.dtype}", MIXED_TYPES, hint)
    if Mask is not None:
        require(Mask.dtype == bool_, f"Mask must be bool, is {Mask.dtype}", DTypeError, "a float array is a Bias")


def check_attributes(
    layout: str, scale: float | None, window: Ints | None, masked_score: float, dropout: float
) -> None:  # fmt: skip
    """Values of attributes that no array can make right."""
    require(layout in LAYOUTS, f"layout {layout!r} is none of {', '.join(LAYOUTS)}", AttrError)
    require(scale is None or math.isfinite(scale), f"scale must be finite, is {scale}", AttrError)
    require(
        window is None or (len(window) == 2 and min(window) >= 0),
        f"window must be (left, right) >= 0, is {window}", AttrError,
    )  # fmt: skip
    require(
        masked_score < math.inf and not math.isnan(masked_score),
        f"masked_score must be finite or -inf, is {masked_score}", AttrError,
    )  # fmt: skip
    require(0 <= dropout < 1, f"dropout must lie in [0, 1), is {dropout}", AttrError)


def check_broadcast(name: str, t: TensorType, scores: tuple[int, ...]) -> None:
    """`t` broadcasts to the scores, and the scores do not broadcast to it."""
    require(t.ndim <= len(scores), f"{name} has rank {t.ndim}, scores have rank {len(scores)}: {list(scores)}", RANK)
    for axis in range(-t.ndim, 0):
        size, wanted = t.shape[axis], scores[axis]
        if not (size in (1, -1, wanted) or wanted == -1):
            what = SCORE_AXES[len(scores)][axis]
            raise BROADCAST(f"{name} {t} does not broadcast to scores {list(scores)}: {what} axis {axis} has {size}")


def check_sequences(Q: TensorType, CuSeqlensQ: TensorType | None, CuSeqlensK: TensorType | None) -> None:
    """Cumulative lengths come in pairs of one length, for one batch."""
    if CuSeqlensQ is None and CuSeqlensK is None:
        return
    require(
        CuSeqlensQ is not None and CuSeqlensK is not None, "CuSeqlensQ and CuSeqlensK are given together or not at all"
    )
    assert CuSeqlensQ is not None
    assert CuSeqlensK is not None
    for name, t in (("CuSeqlensQ", CuSeqlensQ), ("CuSeqlensK", CuSeqlensK)):
        require(t.dtype in INTS and t.dtype.itemsize >= 4, f"{name} must be int32 or int64, is {t.dtype}", DTypeError)
        require(t.ndim == 1 and t.shape[0] != 0, f"{name} must be 1-D with at least one element, is {t}", RANK)
    _same("lengths of CuSeqlensQ and CuSeqlensK", CuSeqlensQ.shape[0], CuSeqlensK.shape[0])
    same = CuSeqlensQ.dtype == CuSeqlensK.dtype
    require(same, f"CuSeqlensQ is {CuSeqlensQ}, CuSeqlensK is {CuSeqlensK}", MIXED_TYPES)
    require(
        Q.ndim == 4 and Q.shape[0] in (1, -1), f"packed sequences lie in one batch of rank 4, Q is {Q}",
        hint="unsqueeze [tokens, heads, size] to [1, tokens, heads, size]",
    )  # fmt: skip


def check_blocks(
    Blocks: TensorType | None, block_size: int | None, scores: tuple[int, ...], CuSeqlensQ: TensorType | None
) -> None:  # fmt: skip
    """A table of blocks has an element for each block of the scores."""
    if Blocks is None or block_size is None:
        fact = "Blocks are given without block_size" if block_size is None else "block_size is given without Blocks"
        require(Blocks is None and block_size is None, fact, AttrError, "give both or none")
        return
    require(block_size > 0, f"block_size must be positive, is {block_size}", AttrError)
    require(Blocks.dtype == bool_, f"Blocks must be bool, is {Blocks.dtype}", DTypeError)
    require(CuSeqlensQ is None, "Blocks and packed sequences cannot be given together", hint="a Mask goes with both")
    table = tuple(size if size == -1 else -(-size // block_size) for size in scores[-2:])
    wanted = f"{list(table)}" + (f" or {[scores[1], *table]}" if len(scores) == 4 else "")
    heads = Blocks.shape[:-2]
    require(
        2 <= Blocks.ndim < len(scores) and all(h in (1, -1) or scores[1] in (h, -1) for h in heads)
        and all(-1 in pair or pair[0] == pair[1] for pair in zip(Blocks.shape[-2:], table, strict=True)),
        f"Blocks must be {wanted} for scores {list(scores)} and block_size {block_size}, is {Blocks}",
    )  # fmt: skip


@memory_efficient_attention.grad
def _(
    g, Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, Out, LogSumExp, Out_grad, LogSumExp_grad=None, **attrs
):  # fmt: skip
    more = Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, LogSumExp_grad
    if LogSumExp is None:  # the forward call names none: compute it again
        LogSumExp = g.memory_efficient_attention(Q, K, V, *more[:6], needs=["LogSumExp"], **attrs)[1]
    return g.memory_efficient_attention_grad(Q, K, V, Out, LogSumExp, Out_grad, *more, **attrs)


@memory_efficient_attention.samples
def _(rng):
    yield from calls(rng)


def calls(rng: np.random.Generator) -> Any:
    """(inputs, attributes) that together reach every feature; few shapes, since each is compiled for a GPU."""

    def normal(*shape):
        return rng.normal(size=shape)

    def qkv(b, sq, sk, h, hk, d, dv):
        return normal(b, sq, h, d), normal(b, sk, hk, d), normal(b, sk, hk, dv)

    key = np.array([7, 3, 1])
    yield qkv(2, 5, 7, 2, 2, 4, 4), {}
    yield qkv(1, 3, 6, 4, 2, 4, 3), {"causal": True, "bottom_right": True}
    yield tuple(x.transpose(0, 2, 1, 3).copy() for x in qkv(2, 6, 4, 2, 1, 3, 5)), {"causal": True, "layout": "bhsd"}
    yield (*qkv(2, 4, 5, 2, 2, 3, 3), normal(1, 2, 4, 5)), {"scale": 0.7, "deterministic": True}
    yield (*qkv(2, 4, 5, 2, 2, 3, 3), normal(2, 1, 1, 5), rng.random((4, 5)) < 0.6), {"masked_score": -3.0}
    yield (normal(3, 4, 5), normal(3, 6, 5), normal(3, 6, 2), normal(4, 1), rng.random((3, 4, 6)) < 0.4), {}
    yield (*qkv(1, 6, 7, 4, 2, 4, 4), normal(2 * 2, 1, 7), None, None, None, key), {"dropout": 0.4, "window": (2, 1)}
    packed = np.array([0, 3, 3, 7]), np.array([0, 2, 6, 8])
    yield (*qkv(1, 8, 8, 2, 1, 4, 4), None, None, *packed), {"causal": True, "bottom_right": True}
    blocks = np.array([[True, False, True], [False, False, False], [False, True, True]])
    yield (*qkv(1, 6, 7, 2, 1, 3, 3), *(None,) * 5, blocks[:2]), {"block_size": 3}  # half of the queries see nothing
    heads = np.stack([blocks, ~blocks])
    yield (*qkv(1, 5, 6, 2, 2, 3, 2), normal(6), *(None,) * 3, key, heads), {
        "block_size": 2, "causal": True, "bottom_right": True, "dropout": 0.3,
    }  # fmt: skip
    yield (*qkv(2, 0, 3, 1, 1, 2, 2),), {}
    yield (*qkv(1, 3, 0, 1, 1, 2, 2),), {}
    yield (*qkv(1, 1, 1, 1, 1, 1, 1), normal(1)), {"is_test": True, "dropout": 0.5}
