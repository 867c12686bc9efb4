"""The gradient of attention, from LogSumExp instead of the probabilities.

    P = exp(S - LogSumExp)        the probabilities, again                      kept: the dropout factors
    dP = kept * (Out_grad V^T)    delta = rowsum(Out_grad * Out) - LogSumExp_grad
    dS = P * (dP - delta)
    Q_grad = scale * dS K         K_grad = scale * dS^T Q         V_grad = (kept * P)^T Out_grad
    Bias_grad = dS, summed over the axes along which Bias was broadcast

LogSumExp_grad is absent where nothing reads LogSumExp but this operator, and counts 0 where LogSumExp is infinite.
Where LogSumExp is so far from 0 that it rounds away how many keys share a Bias, or +inf, the exponentials are divided
by their sum again. Where Mask is False, dS goes nowhere. Gradients of K and V are sums over their group of query heads.
"""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import require
from minigraph.kernels.cpu.attention import (
    FAR,
    as_given,
    counted,
    heads_first,
    scores_first,
    weighted,
)
from minigraph.opdef import Ints, op
from minigraph.ops.elementwise.elementwise import sum_to

from .attention import calls, dense, memory_efficient_attention, scores_shape
from .second_order import second_gradients


@op(
    "Q_grad?, K_grad?, V_grad?, Bias_grad?", cpu="minigraph.kernels.cpu.attention:backward", gpu="attention.attention",
    strided=("Q", "K", "V", "Q_grad", "K_grad", "V_grad"),
)  # fmt: skip
def memory_efficient_attention_grad(
    Q, K, V, Out, LogSumExp, Out_grad, Bias=None, Mask=None, CuSeqlensQ=None, CuSeqlensK=None, Key=None,
    Blocks=None, LogSumExp_grad=None, *, layout: str = "bshd", scale: float | None = None, causal: bool = False,
    bottom_right: bool = False, window: Ints | None = None, masked_score: float = -math.inf, dropout: float = 0.0,
    is_test: bool = False, deterministic: bool = False, block_size: int | None = None,
    needs=("Q_grad", "K_grad", "V_grad", "Bias_grad"),
):  # fmt: skip
    """Gradients of memory_efficient_attention from its inputs, its outputs and their gradients."""
    d = dense(
        Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, layout=layout, scale=scale, causal=causal,
        bottom_right=bottom_right, window=window, masked_score=masked_score, dropout=dropout, is_test=is_test,
        block_size=block_size,
    )  # fmt: skip
    out, out_grad = heads_first(Out, layout), heads_first(Out_grad, layout)
    log_sum = (LogSumExp[:, None] if Q.ndim == 3 else LogSumExp)[..., None]
    seen = d.scores != -math.inf
    far = (log_sum != -math.inf) & (abs(log_sum) > FAR)  # +inf, where Mask hides keys, too
    start = np.where(far, d.scores.max(axis=-1, keepdims=True, initial=-math.inf), log_sum)
    probabilities = np.where(seen, np.exp(d.scores - start), 0)
    probabilities /= np.where(far, probabilities.sum(axis=-1, keepdims=True), 1)
    probabilities = probabilities.astype(Q.dtype)
    delta = (out * out_grad).sum(axis=-1, keepdims=True) - counted(LogSumExp_grad, log_sum)
    inner = np.where(probabilities == 0, 0, (out_grad @ d.V.swapaxes(-1, -2)) * d.kept - delta)
    slopes = np.where(d.drawn, probabilities * inner, 0)

    def of_group(x: np.ndarray) -> np.ndarray:
        """Summed over the query heads that share a head."""
        b, heads, s, size = x.shape
        return x.reshape(b, heads // max(d.groups, 1), d.groups, s, size).sum(axis=2)

    Q_grad = K_grad = V_grad = Bias_grad = None
    if "Q_grad" in needs:
        Q_grad = as_given(weighted(slopes, d.K) * d.scale, Q.ndim, layout)
    if "K_grad" in needs:
        K_grad = as_given(of_group(weighted(slopes.swapaxes(-1, -2), d.Q)) * d.scale, Q.ndim, layout)
    if "V_grad" in needs:
        V_grad = as_given(of_group(weighted((probabilities * d.kept).swapaxes(-1, -2), out_grad)), Q.ndim, layout)
    if Bias is not None and "Bias_grad" in needs:
        whole = scores_first(Bias, Q.ndim)
        assert whole is not None
        Bias_grad = sum_to(slopes, whole.shape).reshape(Bias.shape).astype(Bias.dtype)
    return Q_grad, K_grad, V_grad, Bias_grad


@memory_efficient_attention_grad.flops
def _(types, attrs):
    """Five products: the scores once more, and those of the gradients."""
    scores = math.prod(scores_shape(types["Q"].shape, types["K"].shape, attrs["layout"]))
    return 2 * scores * (3 * types["Q"].shape[-1] + 2 * types["V"].shape[-1])


@memory_efficient_attention_grad.infer
def _(Q, K, V, Out, LogSumExp, Out_grad, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, LogSumExp_grad, **attrs):
    infer = memory_efficient_attention.infer_function
    assert infer is not None
    out, sums = infer(Q, K, V, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, **attrs)
    checked = ("Out", Out, out), ("LogSumExp", LogSumExp, sums), ("Out_grad", Out_grad, out)
    for name, given, wanted in (*checked, ("LogSumExp_grad", LogSumExp_grad or sums, sums)):
        require(wanted.accepts(given) or given.accepts(wanted), f"{name} must be {wanted}, is {given}")
    return Q, K, V, Bias


@memory_efficient_attention_grad.grad
def _(
    g, Q, K, V, Out, LogSumExp, Out_grad, Bias, Mask, CuSeqlensQ, CuSeqlensK, Key, Blocks, LogSumExp_grad,
    Q_grad_grad=None, K_grad_grad=None, V_grad_grad=None, Bias_grad_grad=None, **attrs,
):  # fmt: skip
    ins = {
        "Q": Q, "K": K, "V": V, "Out": Out, "LogSumExp": LogSumExp, "Out_grad": Out_grad, "Bias": Bias, "Mask": Mask,
        "CuSeqlensQ": CuSeqlensQ, "CuSeqlensK": CuSeqlensK, "Key": Key, "Blocks": Blocks,
        "LogSumExp_grad": LogSumExp_grad,
    }  # fmt: skip
    grads = {"Q_grad": Q_grad_grad, "K_grad": K_grad_grad, "V_grad": V_grad_grad, "Bias_grad": Bias_grad_grad}
    found = second_gradients(g, ins, grads, attrs)
    return tuple(found.get(slot) for slot in ins)


@memory_efficient_attention_grad.samples
def _(rng):
    for number, (inputs, attrs) in enumerate(calls(rng)):
        whole = (*inputs, *(None,) * (9 - len(inputs)))
        out, sums = memory_efficient_attention.reference(*whole, **attrs)
        sums_grad = rng.normal(size=sums.shape) if number % 2 else None
        yield (*whole[:3], out, sums, rng.normal(size=out.shape), *whole[3:], sums_grad), attrs
