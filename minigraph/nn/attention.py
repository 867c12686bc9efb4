"""Multi-head attention with its projections."""

from __future__ import annotations

from typing import Any, NamedTuple

from minigraph import tensor
from minigraph.errors import AttrError, require
from minigraph.nn.functional.attention import attend
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor.arguments import variable
from minigraph.types import FLOATS, bool_

from . import functional as F
from .layer import Layer
from .layers import Linear

HIDDEN = -1e9  # added to the score of a hidden key where the weights are asked for, as in Paddle


class Cache(NamedTuple):
    """Keys and values [B, H, S, D] of all positions so far; forward appends and returns a new one."""

    k: Variable
    v: Variable


class StaticCache(NamedTuple):
    """Keys and values [B, H, S, D] that stay as they are, those of an encoder for example."""

    k: Variable
    v: Variable


class MultiHeadAttention(Layer):
    """out_proj(attention of q_proj(query), k_proj(key), v_proj(value) in num_heads heads).

    embed_dim     size of query and of the result, a multiple of num_heads
    dropout       of attention probabilities while training
    kdim, vdim    sizes of key and value, embed_dim for None
    need_weights  forward also returns the probabilities [B, H, Sq, Sk], which then exist in memory
    Without need_weights the probabilities never exist: memory grows with S, not S^2.
    """

    Cache, StaticCache = Cache, StaticCache

    @whole
    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, kdim: int | None = None, vdim: int | None = None,
        need_weights: bool = False, weight_attr: Any = None, bias_attr: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        require(embed_dim > 0, f"embed_dim must be positive, is {embed_dim}", AttrError)
        require(num_heads > 0, f"num_heads must be positive, is {num_heads}", AttrError)
        require(embed_dim % num_heads == 0, f"embed_dim {embed_dim} is no multiple of num_heads {num_heads}", AttrError)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.need_weights = dropout, need_weights
        facts = {"weight_attr": weight_attr, "bias_attr": bias_attr}
        self.q_proj = Linear(embed_dim, embed_dim, **facts)
        self.k_proj = Linear(self.kdim, embed_dim, **facts)
        self.v_proj = Linear(self.vdim, embed_dim, **facts)
        self.out_proj = Linear(embed_dim, embed_dim, **facts)

    @whole
    def forward(
        self, query: Variable, key: Variable | None = None, value: Variable | None = None,
        attn_mask: Variable | None = None, cache: Cache | StaticCache | None = None,
    ) -> Any:  # fmt: skip
        """The result [B, Sq, embed_dim]; with need_weights or a cache a tuple (result, weights, cache).

        query [B, Sq, embed_dim]; key [B, Sk, kdim] and value [B, Sk, vdim] are query for None
        attn_mask  broadcasts to [B, H, Sq, Sk]: bool or int, a key is seen where it is not 0; or float, added
        """
        key, value = (query if x is None else x for x in (key, value))
        q = self._heads(self.q_proj(variable(query, "MultiHeadAttention", "query")))
        mask = attn_mask
        if mask is not None and mask.dtype != bool_ and mask.dtype not in FLOATS:
            mask = tensor.cast(mask, "bool")
        if cache is None and not self.need_weights:
            k, v = self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
            return self._joined(F.scaled_dot_product_attention(q, k, v, mask, self.dropout, False, self.training))
        q = _exchanged(q)
        k, v = (cache.k, cache.v) if isinstance(cache, StaticCache) else self.compute_kv(key, value)
        if isinstance(cache, Cache):
            k, v = (tensor.concat(list(pair), axis=2) for pair in ((cache.k, k), (cache.v, v)))
            cache = Cache(k, v)
        weights = None
        if self.need_weights:
            out, weights = self._explicit(q, k, v, mask)
        else:
            out = attend(
                "MultiHeadAttention", q, k, v, mask, layout="bhsd", dropout=self.dropout, training=self.training
            )
        results = [self._joined(_exchanged(out)), *(x for x in (weights, cache) if x is not None)]
        return results[0] if len(results) == 1 else tuple(results)

    @whole
    def compute_kv(self, key: Variable, value: Variable) -> tuple[Variable, Variable]:
        """Projected keys and values [B, H, S, D]."""
        return _exchanged(self._heads(self.k_proj(key))), _exchanged(self._heads(self.v_proj(value)))

    @whole
    def gen_cache(
        self, key: Variable, value: Variable | None = None, type: type[Cache] | type[StaticCache] = Cache
    ) -> Cache | StaticCache:
        """A cache for forward.

        type=StaticCache   of the projected key and value
        type=Cache         without value an empty one for the batch of `key`; else key and value are
                           taken as they are, [B, H, S, D]
        """
        if type is StaticCache:
            return StaticCache(*self.compute_kv(key, key if value is None else value))
        if value is not None:
            return Cache(key, value)
        nothing = builder_of(key).slice(key, axes=[1], starts=[0], ends=[0])
        width = tensor.zeros([key.shape[-1], self.embed_dim], key.dtype)  # not k_proj, which would take a layer's name
        empty = _exchanged(self._heads(tensor.matmul(nothing, width)))
        return Cache(empty, empty)

    def _explicit(self, q: Variable, k: Variable, v: Variable, mask: Variable | None) -> tuple[Variable, Variable]:
        """The result and the probabilities, [B, H, Sq, Sk]."""
        scores = tensor.matmul(tensor.scale(q, self.head_dim**-0.5), k, transpose_y=True)
        if mask is not None and mask.dtype == bool_:
            mask = tensor.scale(tensor.cast(mask, scores.dtype), -HIDDEN, bias=HIDDEN)
        weights = F.softmax(scores if mask is None else tensor.add(scores, mask))
        if self.dropout:
            weights = F.dropout(weights, self.dropout, training=self.training)
        return tensor.matmul(weights, v), weights

    def _heads(self, x: Variable) -> Variable:
        """[B, S, H, D] of [B, S, H * D]."""
        return tensor.reshape(x, [0, 0, self.num_heads, self.head_dim])

    def _joined(self, x: Variable) -> Variable:
        return self.out_proj(tensor.reshape(x, [0, 0, self.embed_dim]))

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}"


def _exchanged(x: Variable) -> Variable:
    """[B, H, S, D] of [B, S, H, D] and the reverse."""
    return tensor.transpose(x, [0, 2, 1, 3])
