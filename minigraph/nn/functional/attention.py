"""Attention as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.errors import DTypeError, call_site
from minigraph.errors.flags import as_flag
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor.arguments import also_named, output_prefix, variable
from minigraph.types import FLOATS, bool_


@also_named(attn_bias="attn_mask", p="dropout_p", causal="is_causal")
@whole
def scaled_dot_product_attention(
    query: Variable, key: Variable, value: Variable, attn_mask: Variable | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, training: bool = True, name: str | None = None, *, scale: float | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """softmax(scale * query key^T) value, without the matrix of probabilities in memory.

    query      [B, Sq, H, D]
    key, value [B, Sk, Hk, D] with H a multiple of Hk; value's D may be another
    attn_mask  broadcasts to [B, H, Sq, Sk]: bool, True where a query sees a key, or float, added to the scores
    dropout_p  probabilities dropped while training; `program.clone(for_test=True)` turns that off
    is_causal  query i sees the keys j <= i
    scale      1 / sqrt(D) for None
    return_lse  also return the logarithm of sum(exp(scores)) of each query, [B, H, Sq], float64 for float64, else
               float32; gradients flow through it. With it parts of the keys are joined: docs/attention.md
    A query that sees no key gives zeros. Forward and backward repeat bit by bit on every device.
    The names attn_bias, p and causal of ops.memory_efficient_attention work here, too.
    """
    return attend(
        "scaled_dot_product_attention", query, key, value, attn_mask, scale=scale, dropout=dropout_p, causal=is_causal,
        training=training, name=name, return_lse=return_lse,
    )  # fmt: skip


def attend(
    call: str, query: Variable, key: Variable, value: Variable, attn_bias: Variable | None = None, *,
    cu_seqlens: tuple[Variable | None, Variable | None] = (None, None), blocks: Variable | None = None,
    block_size: int | None = None, layout: str = "bshd",
    scale: float | None = None, causal: bool = False, bottom_right: bool = False, window: Sequence[int] | None = None,
    dropout: float = 0.0, training: bool = True, deterministic: bool = False, name: str | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """The operator memory_efficient_attention; `attn_bias` is a Bias, or where it is bool a Mask.

    Returns Out, with return_lse (Out, LogSumExp).
    """
    q, k, v = (variable(x, call, n) for x, n in ((query, "query"), (key, "key"), (value, "value")))
    return_lse, training = as_flag("return_lse", return_lse), as_flag("training", training)
    bias = mask = None
    if attn_bias is not None:
        given = variable(attn_bias, call, "attn_bias" if call == "memory_efficient_attention" else "attn_mask")
        bias, mask = (None, given) if given.dtype == bool_ else (given, None)
        if given.dtype not in (bool_, *FLOATS):
            raise DTypeError(
                f"the mask is {given.dtype}, it must be bool or a float", call=call, site=call_site(),
                hint="cast(mask, 'bool')",
            )  # fmt: skip
    table = variable(blocks, call, "block_mask") if blocks is not None else None
    g, prefix = builder_of(q), output_prefix(call, name)
    drawn: Any = g.random_key(name=prefix) if dropout and training else None
    out, sums = g.memory_efficient_attention(
        q, k, v, bias, mask, *cu_seqlens, drawn, table, layout=layout, scale=scale, causal=causal,
        bottom_right=bottom_right, window=window, dropout=dropout, is_test=not training, deterministic=deterministic,
        block_size=block_size, needs=["LogSumExp"], name=prefix,
    )  # fmt: skip
    return (out, sums) if return_lse else out
