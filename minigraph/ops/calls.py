"""Operators that users call on Variables under this package's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.nn.functional.attention import attend
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor.arguments import also_named


@also_named(attn_mask="attn_bias", dropout_p="p", is_causal="causal")
@whole
def memory_efficient_attention(
    query: Variable, key: Variable, value: Variable, attn_bias: Variable | None = None, p: float = 0.0,
    scale: float | None = None, *, causal: bool = False, bottom_right: bool = False,
    window: Sequence[int] | None = None, cu_seqlens_q: Variable | None = None, cu_seqlens_k: Variable | None = None,
    block_mask: Variable | None = None, block_size: int | None = None, layout: str = "bshd", training: bool = True,
    deterministic: bool = False, return_lse: bool = False, name: str | None = None,
) -> Any:  # fmt: skip
    """softmax(scale * query key^T + attn_bias) value in memory that grows with S, not S^2.

    query        [B, Sq, H, D], with layout="bhsd" [B, H, Sq, D], or [B, Sq, D]
    key, value   the same with Hk heads, H a multiple of Hk; value's D may be another
    attn_bias    broadcasts to [B, H, Sq, Sk] ([B, Sq, Sk]): float, added to the scores, with a gradient;
                 or bool, True where a query sees a key
    p            dropout of probabilities while training
    scale        1 / sqrt(D) for None
    causal       query i sees the keys j <= i; with bottom_right j <= i + Sk - Sq
    window       (left, right): of these i - left <= j <= i + right
    cu_seqlens_q, cu_seqlens_k   int [N + 1], cumulative lengths of N sequences packed into B = 1
    block_mask   bool [ceil(Sq / block_size), ceil(Sk / block_size)], for each head [H, ...]: block (i, j) of block_size
                 queries and keys is seen where it is True, and where it is False not computed. Beside causal, window,
                 attn_bias and p; not beside packed sequences
    block_size   multiples of 64 suit the GPU kernels best
    deterministic  all kernels repeat their bits, whether this is asked for or not; their order takes -4 to 4 % of
                 backward's time on an H200, up to 24 % where heads are few (bench/results/studies/attention_order.json)
    return_lse   also return the logarithm of sum(exp(scores)) of each query, [B, H, Sq] or [B, Sq], as xFormers'
                 forward does; float64 for float64, else float32; gradients flow through it
    A query that sees no key gives zeros. Names and order of the first arguments are xFormers'; those of
    nn.functional.scaled_dot_product_attention work, too: attn_mask, dropout_p, is_causal.
    """
    return attend(
        "memory_efficient_attention", query, key, value, attn_bias, cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
        blocks=block_mask, block_size=block_size,
        layout=layout, scale=scale, causal=causal, bottom_right=bottom_right, window=window, dropout=p,
        training=training, deterministic=deterministic, name=name, return_lse=return_lse,
    )  # fmt: skip
