"""Paddle's module `nn.functional.flash_attention`: attention under its older names."""

from __future__ import annotations

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import whole

from .attention import attend, scaled_dot_product_attention


@whole
def flash_attention(
    query: Variable, key: Variable, value: Variable, dropout: float = 0.0, causal: bool = False,
    return_softmax: bool = False, *, fixed_seed_offset: None = None, rng_name: str = "", training: bool = True,
    name: str | None = None,
) -> tuple[Variable, None]:  # fmt: skip
    """(scaled_dot_product_attention(query, key, value), None), with arrays of [B, S, H, D].

    return_softmax     only False: the matrix of probabilities is never in memory
    fixed_seed_offset  only None; the program's seed decides what is dropped. rng_name has no effect
    """
    require(not return_softmax, "return_softmax=True is not there", AttrError, "nn.functional.softmax of the product")
    require(fixed_seed_offset is None, "fixed_seed_offset is not there", AttrError, "program.random_seed, mg.seed")
    out = attend("flash_attention", query, key, value, dropout=dropout, causal=causal, training=training, name=name)
    return out, None


__all__ = ["flash_attention", "scaled_dot_product_attention"]
