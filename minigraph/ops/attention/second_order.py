"""The gradient of attention's gradient, written out in dense operators: all scores are in memory, several times.

The gradient operator computes from Q, K, V, Bias, Out, LogSumExp = L, Out_grad = G and LogSumExp_grad = l

    P = exp(S - L)    T = G V^T    D = drawn * P * (kept * T - delta)    delta = rowsum(G * Out) - l
    Q_grad = scale D K    K_grad = scale D^T Q    V_grad = (kept * P)^T G    Bias_grad = D

With the gradients A, C, E, F of these four results

    dD = scale (A K^T + Q C^T) + F                dT = kept * drawn * dD * P
    dP = drawn * dD * (kept * T - delta) + kept * G E^T          d delta = -rowsum(drawn * dD * P)
    dS = drawn * P * dP                           dL = -rowsum(P * dP)

`kept` are the dropout factors, `drawn` is Mask. What reaches Out and LogSumExp flows on through the gradient operator
of attention itself. Rows with an infinite L are as in that operator; rows with a Bias so far from 0 that L is not
exact enough, or +inf, divide by their sum, and their dL is part of dS. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from minigraph.errors import require
from minigraph.errors.kinds import UNKNOWN_SIZE
from minigraph.kernels.cpu.attention import FAR, HIDDEN_WHOLE, scale_of

from .sight import factors_type

Slots = Mapping[str, Any]


class Slopes(NamedTuple):
    """Arrays of scores, [..., Sq, Sk]: what the gradient operator computed, and the gradients of it."""

    p: Any
    kept: Any
    slopes: Any  # D
    to_scores: Any  # dS
    through: Any  # drawn * dD * P
    to_sums: Any  # dL, [..., Sq, 1]
    scores: Any


class DenseAttention:
    """One call of the gradient operator in dense operators of `g`: arrays [B, H, S, D], scores [B, H, Sq, Sk].

    None is an array of zeros that nobody computes: a product with it and a sum of nothing else are None, too.
    """

    def __init__(self, g: Any, Q: Any, K: Any, layout: str) -> None:
        self.g, self.rank, self.layout = g, Q.ndim, layout
        self.dtype = factors_type(Q.dtype)
        axis = 2 if layout == "bshd" else 1
        self.heads, self.kv_heads = (1, 1) if Q.ndim == 3 else (Q.shape[axis], K.shape[axis])
        require(
            -1 not in (self.heads, self.kv_heads), f"a second derivative needs to know the heads of Q {Q} and K {K}",
            UNKNOWN_SIZE, "give static.data the number of heads",
        )  # fmt: skip
        self.groups = self.heads // max(self.kv_heads, 1)

    def computed(self, x: Any) -> Any:
        """`x` in the type that is computed in."""
        return x if x is None or x.dtype == self.dtype else self.g.cast(x, dtype=self.dtype)

    def first(self, x: Any) -> Any:
        """Heads before rows."""
        x = self.computed(x)
        return x if x is None or self.rank == 3 or self.layout == "bhsd" else self.g.transpose(x, perm=(0, 2, 1, 3))

    def repeated(self, x: Any) -> Any:
        """first(x), each head as often as query heads read it."""
        x = self.first(x)
        if x is None or self.groups == 1:
            return x
        wide = self.g.expand(self.g.unsqueeze(x, axes=(2,)), shape=(-1, -1, self.groups, -1, -1))
        return self.g.reshape(wide, shape=(0, self.heads, -1, x.shape[-1]))

    def given_back(self, x: Any, like: Any, grouped: bool = False) -> Any:
        """A gradient in the layout and type of `like`; `grouped`: summed over the query heads that share a head."""
        if x is None:
            return None
        if grouped and self.groups > 1:
            apart = self.g.reshape(x, shape=(0, self.kv_heads, self.groups, -1, like.shape[-1]))
            x = self.g.reduce_sum(apart, axis=(2,))
        if self.rank == 4 and self.layout == "bshd":
            x = self.g.transpose(x, perm=(0, 2, 1, 3))
        return x if x.dtype == like.dtype else self.g.cast(x, dtype=like.dtype)

    def product(self, x: Any, y: Any, **transposed: bool) -> Any:
        return None if x is None or y is None else self.g.matmul(x, y, **transposed)

    def times(self, x: Any, *factors: Any) -> Any:
        """x times all factors; a factor of None is 1."""
        for factor in factors if x is not None else ():
            x = x if factor is None else self.g.elementwise_mul(x, factor)
        return x

    def added(self, *terms: Any) -> Any:
        total = None
        for term in terms:
            total = term if total is None else total if term is None else self.g.elementwise_add(total, term)
        return total

    def over_keys(self, x: Any) -> Any:
        """The sum over the keys, whose axis stays."""
        return None if x is None else self.g.reduce_sum(x, axis=(-1,), keepdim=True)

    def chosen(self, condition: Any, x: Any, other: float) -> Any:
        """x where `condition`, else a number."""
        return None if x is None else self.g.where(condition, x, self.number(other))

    def number(self, value: float) -> Any:
        return self.g.fill_constant(shape=(), value=value, dtype=self.dtype)

    def probabilities(self, scores: Any, seen: Any, sums: Any, may_be_far: bool) -> tuple[Any, Any]:
        """P, 0 where LogSumExp `sums` [..., 1] is infinite and not far; which rows are far and divide by their sum."""
        g, counts, far = self.g, self.g.isfinite(sums), None
        start = self.chosen(counts, sums, 0.0)
        if may_be_far and scores.shape[-1] != 0:
            far = g.logical_and(counts, g.less_than(sums, self.number(-FAR)))
            far = g.logical_or(far, g.greater_than(sums, self.number(FAR)))
            counts = g.logical_or(counts, far)
            largest = g.reduce_max(self.chosen(seen, scores, -math.inf), axis=(-1,), keepdim=True)
            start = g.where(far, largest, start)
        below = g.elementwise_sub(scores, start)
        p = g.exp(self.chosen(g.logical_and(seen, counts), below, -math.inf))
        if far is not None:
            p = g.elementwise_div(p, self.chosen(far, self.over_keys(p), 1.0))
        return p, far

    def as_bias(self, s: Slopes, bias: Any, given: Any) -> Any:
        """The gradient of Bias from that of the scores."""
        summed = self.g.elementwise_add_grad(s.scores, bias, s.to_scores, needs=["Y_grad"])[1]
        return summed if summed.dtype == given.dtype else self.g.cast(summed, dtype=given.dtype)


def slopes_of(d: DenseAttention, ins: Slots, to: Slots, attrs: Slots, factor: float) -> Slopes:
    """Of arrays with the heads first: `ins` the inputs, `to` the gradients of the results."""
    g, mask, masked_score, lse_grad = d.g, ins["Mask"], attrs["masked_score"], ins["LogSumExp_grad"]
    seen, kept = sight_of(g, ins, attrs)
    sums = g.unsqueeze(ins["LogSumExp"], axes=(-1,))
    drawn = None if mask is None else g.cast(mask, dtype=d.dtype)
    scores = d.added(g.scale(g.matmul(ins["Q"], ins["K"], trans_y=True), scale=factor), ins["Bias"])
    scores = scores if mask is None else d.chosen(mask, scores, masked_score)
    hides = mask is not None and -math.inf < masked_score <= HIDDEN_WHOLE
    p, far = d.probabilities(scores, seen, sums, ins["Bias"] is not None or hides)

    delta = d.over_keys(g.elementwise_mul(ins["Out_grad"], ins["Out"]))
    if lse_grad is not None:
        counted = d.chosen(g.isfinite(sums), g.unsqueeze(lse_grad, axes=(-1,)), 0.0)
        delta = g.elementwise_sub(delta, counted)
    of_values = d.times(g.matmul(ins["Out_grad"], ins["V"], trans_y=True), kept)
    slope = d.times(g.elementwise_sub(of_values, delta), drawn)

    changed = d.added(d.product(to["Q_grad"], ins["K"], trans_y=True), d.product(ins["Q"], to["K_grad"], trans_y=True))
    changed = d.added(None if changed is None else g.scale(changed, scale=factor), to["Bias_grad"])
    to_p = d.added(
        d.times(changed, slope), d.times(d.product(ins["Out_grad"], to["V_grad"], trans_y=True), kept)
    )  # fmt: skip
    to_scores = d.times(to_p, p)
    total = d.over_keys(to_scores)
    if far is not None:
        to_scores = g.elementwise_sub(to_scores, g.elementwise_mul(p, d.chosen(far, total, 0.0)))
        total = g.where(far, d.number(0.0), total)
    return Slopes(
        p, kept, g.elementwise_mul(slope, p), d.times(to_scores, drawn), d.times(changed, drawn, p),
        g.scale(total, scale=-1.0), scores,
    )  # fmt: skip


def sight_of(g: Any, ins: Slots, attrs: Slots) -> tuple[Any, Any]:
    """What attention_sight gives of the call; no factors where nothing is dropped."""
    drops = attrs["dropout"] > 0 and not attrs["is_test"]
    names = "layout", "causal", "bottom_right", "window", "dropout", "is_test", "block_size"
    given = [ins[s] for s in ("CuSeqlensQ", "CuSeqlensK", "Key", "Blocks")]
    return g.attention_sight(
        *ins["sizes"], *given, needs=["Kept"] if drops else [], **{name: attrs[name] for name in names}
    )  # fmt: skip


def second_gradients(g: Any, ins: Slots, to: Slots, attrs: Slots) -> dict[str, Any]:
    """{input slot of memory_efficient_attention_grad: its gradient}, None where there is none or nobody needs it.

    ins     its inputs by slot
    to      gradients of its outputs by their slots, None where nothing reads one
    """
    Q, K, V, Out, Out_grad = (ins[slot] for slot in ("Q", "K", "V", "Out", "Out_grad"))
    d, factor = DenseAttention(g, Q, K, attrs["layout"]), scale_of(attrs["scale"], Q.shape[-1])
    first = {slot: d.first(ins[slot]) for slot in ("Q", "Out", "Out_grad")}
    first |= {slot: d.repeated(ins[slot]) for slot in "KV"}
    arrays = {**ins, **first, "Bias": d.computed(ins["Bias"]), "sizes": (Q, K)}
    to = {
        "Q_grad": d.first(to["Q_grad"]), "K_grad": d.repeated(to["K_grad"]), "V_grad": d.repeated(to["V_grad"]),
        "Bias_grad": d.computed(to["Bias_grad"]),
    }  # fmt: skip
    s = slopes_of(d, arrays, to, attrs, factor)
    q, k, v, out, rows = (arrays[slot] for slot in ("Q", "K", "V", "Out", "Out_grad"))
    values, moved = d.times(s.through, s.kept), d.over_keys(s.through)
    towards = None if moved is None else g.scale(moved, scale=-1.0)  # the gradient of delta
    weights = None if to["V_grad"] is None else d.times(s.p, s.kept)

    def of_slopes(x: Any, y: Any, **transposed: bool) -> Any:
        whole = d.added(d.product(s.to_scores, x, **transposed), d.product(s.slopes, y, **transposed))
        return g.scale(whole, scale=factor)

    found = {
        "Q": lambda: d.given_back(of_slopes(k, to["K_grad"]), Q),
        "K": lambda: d.given_back(of_slopes(q, to["Q_grad"], trans_x=True), K, grouped=True),
        "V": lambda: d.given_back(d.product(values, rows, trans_x=True), V, grouped=True),
        "Out": lambda: d.given_back(d.times(towards, rows), Out),
        "LogSumExp": lambda: g.squeeze(s.to_sums, axes=(-1,)),
        "Out_grad": lambda: d.given_back(
            d.added(d.product(values, v), d.product(weights, to["V_grad"]), d.times(towards, out)), Out_grad
        ),
        "Bias": lambda: d.as_bias(s, arrays["Bias"], ins["Bias"]),
        "LogSumExp_grad": lambda: None if moved is None else g.squeeze(
            d.chosen(g.isfinite(g.unsqueeze(ins["LogSumExp"], axes=(-1,))), moved, 0.0), axes=(-1,)
        ),
    }
    return {slot: make() if slot in g.needs and ins[slot] is not None else None for slot, make in found.items()}
