"""Transformer blocks: layers of an encoder and of a decoder, stacks of them, and both joined."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minigraph import tensor
from minigraph.errors import AttrError, nearest, require
from minigraph.program import Variable
from minigraph.program.builder import whole

from . import functional as F
from .activation_layers import Dropout
from .attention import Cache, MultiHeadAttention, StaticCache
from .container import LayerList
from .layer import Layer
from .layers import Linear
from .norm_layers import LayerNorm
from .param_attr import ParamAttr


class _TransformerLayer(Layer):
    """What layers of an encoder and of a decoder share; `attentions` are the names of the attentions."""

    attentions: ClassVar[tuple[str, ...]] = ("self_attn",)

    @whole
    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float = 0.1, activation: Any = "relu",
        attn_dropout: float | None = None, act_dropout: float | None = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None,
    ) -> None:  # fmt: skip
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        require(dim_feedforward > 0, f"dim_feedforward must be positive, is {dim_feedforward}", AttrError)
        self._config, self.normalize_before = arguments, bool(normalize_before)
        self.activation = _activation(activation)
        branches = len(self.attentions) + 1
        *weights, weight = _for_branches("weight_attr", weight_attr, branches)
        *biases, bias = _for_branches("bias_attr", bias_attr, branches)
        for name, w, b in zip(self.attentions, weights, biases, strict=True):
            p = dropout if attn_dropout is None else attn_dropout
            setattr(self, name, MultiHeadAttention(d_model, nhead, p, weight_attr=w, bias_attr=b))
        self.linear1 = Linear(d_model, dim_feedforward, weight, bias)
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weight, bias)
        for n in range(1, branches + 1):
            setattr(self, f"norm{n}", LayerNorm(d_model))
        for n in range(1, branches + 1):
            setattr(self, f"dropout{n}", Dropout(dropout))

    def _branch(self, n: int, x: Variable, function: Callable[[Variable], Any]) -> tuple[Variable, Any]:
        """Residual branch n of x, in which `function` stands, and the cache that it returned beside its result."""
        norm, dropout = getattr(self, f"norm{n}"), getattr(self, f"dropout{n}")
        out = function(norm(x) if self.normalize_before else x)
        out, cache = out if isinstance(out, tuple) else (out, None)
        added = tensor.add(x, dropout(out))
        return (added if self.normalize_before else norm(added)), cache

    def _feed_forward(self, x: Variable) -> Variable:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then a feed-forward network, each with its residual branch and its normalisation.

    d_model           size of the inputs and of the result
    dim_feedforward   size between linear1 and linear2
    activation        a name of nn.functional, or a function of a Variable
    dropout           of what is added to the residual; attn_dropout of attention's probabilities and act_dropout
                      behind the activation are the same for None
    normalize_before  normalise what a branch reads (pre-norm), not the sum behind it (post-norm)
    weight_attr       one for all, or a list with one for each attention and one for linear1 and linear2; bias_attr, too
    """

    self_attn: MultiHeadAttention

    @whole
    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Cache | None = None) -> Any:
        """The result [B, S, d_model], with a cache also the one with this call's keys and values.

        src_mask  broadcasts to [B, H, S, S]: bool or int, a key is seen where it is not 0; or float, added
        """
        out, kept = self._branch(1, src, lambda x: self.self_attn(x, x, x, src_mask, cache))
        out, _ = self._branch(2, out, self._feed_forward)
        return out if cache is None else (out, kept)

    def gen_cache(self, src: Variable) -> Any:
        """An empty cache for forward, for the batch of src."""
        return self.self_attn.gen_cache(src, type=Cache)


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to an encoder's result, then a feed-forward network.

    The arguments are those of TransformerEncoderLayer; there are two attentions.
    """

    attentions = ("self_attn", "cross_attn")
    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention

    @whole
    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Variable | None = None, memory_mask: Variable | None = None,
        cache: tuple[Cache, StaticCache] | None = None,
    ) -> Any:  # fmt: skip
        """The result [B, St, d_model], with a cache also the pair for the next call.

        memory       [B, Sm, d_model], an encoder's result
        tgt_mask     broadcasts to [B, H, St, St] and memory_mask to [B, H, St, Sm], as an encoder layer's src_mask
        """
        own, fixed = cache if cache is not None else (None, None)
        out, kept = self._branch(1, tgt, lambda x: self.self_attn(x, x, x, tgt_mask, own))
        out, same = self._branch(2, out, lambda x: self.cross_attn(x, memory, memory, memory_mask, fixed))
        out, _ = self._branch(3, out, self._feed_forward)
        return out if cache is None else (out, (kept, same))

    def gen_cache(self, memory: Variable) -> tuple[Any, Any]:
        """For forward: an empty cache for the batch of memory, and memory's keys and values."""
        own = self.self_attn.gen_cache(memory, type=Cache)
        return own, self.cross_attn.gen_cache(memory, memory, type=StaticCache)


class _Stack(Layer):
    """A layer and others that are made with the same arguments, one after the other, then `norm` where one is given."""

    def __init__(self, layer: Any, num_layers: int, norm: Any) -> None:
        super().__init__()
        fits = isinstance(num_layers, (int, np.integer)) and not isinstance(num_layers, bool) and num_layers > 0
        require(fits, f"num_layers must be a positive int, is {num_layers!r}", AttrError)
        require(isinstance(layer, Layer), f"a stack is made of a Layer, not of {layer!r}", AttrError)
        config: Any = getattr(layer, "_config", None)
        require(
            num_layers == 1 or isinstance(config, dict), f"{type(layer).__name__} does not say with which arguments it"
            " was made, so there can be no second one", AttrError, "set self._config to a dict of them in its __init__",
        )  # fmt: skip
        self.layers = LayerList([layer, *(type(layer)(**config) for _ in range(num_layers - 1))])
        self.num_layers, self.norm = num_layers, norm

    def _through(self, x: Variable, caches: Any, *memory: Variable, **masks: Variable | None) -> Any:
        """x after all layers, with a list of caches also those for the next call."""
        many, kept = len(self.layers), []
        fits = caches is None or (isinstance(caches, (list, tuple)) and len(caches) == many)
        require(fits, f"cache must be a list of {many}, one for each layer", AttrError, "gen_cache() makes it")
        for i, layer in enumerate(self.layers):
            if caches is None:
                x = layer(x, *memory, **masks)
            else:
                x, new = layer(x, *memory, **masks, cache=caches[i])
                kept.append(new)
        x = x if self.norm is None else self.norm(x)
        return x if caches is None else (x, kept)

    def _caches(self, given: Variable) -> list[Any]:
        """What each layer makes of `given`: an encoder's input, or what a decoder attends to."""
        layers: list[Any] = list(self.layers)
        return [layer.gen_cache(given) for layer in layers]


class TransformerEncoder(_Stack):
    """`num_layers` encoder layers one after the other, then `norm` where one is given.

    encoder_layer  the first one; the others are made with the same arguments and have parameters of their own
    """

    @whole
    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    @whole
    def forward(self, src: Variable, src_mask: Variable | None = None, cache: list[Any] | None = None) -> Any:
        """The result [B, S, d_model], with a list of caches also those for the next call."""
        return self._through(src, cache, src_mask=src_mask)

    def gen_cache(self, src: Variable) -> list[Any]:
        """An empty cache of each layer for the batch of src."""
        return self._caches(src)


class TransformerDecoder(_Stack):
    """`num_layers` decoder layers one after the other, then `norm` where one is given.

    decoder_layer  the first one; the others are made with the same arguments and have parameters of their own
    """

    @whole
    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    @whole
    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Variable | None = None, memory_mask: Variable | None = None,
        cache: list[Any] | None = None,
    ) -> Any:  # fmt: skip
        """The result [B, St, d_model], with a list of caches also those for the next call."""
        return self._through(tgt, cache, memory, tgt_mask=tgt_mask, memory_mask=memory_mask)

    def gen_cache(self, memory: Variable, do_zip: bool = False) -> list[Any]:
        """The pair of caches of each layer; with do_zip all first ones, then all second ones."""
        caches = self._caches(memory)
        return list(zip(*caches, strict=True)) if do_zip else caches


class Transformer(Layer):
    """An encoder, and a decoder that attends to its result; each ends in a LayerNorm.

    custom_encoder, custom_decoder  stand in place of those that the other arguments describe
    weight_attr, bias_attr          one for all or a list: of one; of two, for attentions and feed-forward networks;
                                    of three, for self-attentions, attentions to the encoder, feed-forward networks
    The other arguments are those of the layers.
    """

    @whole
    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu",
        attn_dropout: float | None = None, act_dropout: float | None = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None, custom_encoder: Any = None, custom_decoder: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_model, self.nhead = d_model, nhead
        sizes = d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout, normalize_before
        w, b = _for_both("weight_attr", weight_attr), _for_both("bias_attr", bias_attr)
        if custom_encoder is None:
            layer = TransformerEncoderLayer(*sizes, w[0], b[0])
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, LayerNorm(d_model))
        self.encoder = custom_encoder
        if custom_decoder is None:
            layer = TransformerDecoderLayer(*sizes, w[1], b[1])
            custom_decoder = TransformerDecoder(layer, num_decoder_layers, LayerNorm(d_model))
        self.decoder = custom_decoder

    @whole
    def forward(
        self, src: Variable, tgt: Variable, src_mask: Variable | None = None, tgt_mask: Variable | None = None,
        memory_mask: Variable | None = None,
    ) -> Variable:  # fmt: skip
        """The decoder's result [B, St, d_model] for src [B, Ss, d_model] and tgt [B, St, d_model].

        The masks broadcast to [B, H, Ss, Ss], [B, H, St, St] and [B, H, St, Ss].
        """
        memory = self.encoder(src, src_mask=src_mask)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Variable:
        """A mask [length, length] with which a position sees itself and those before it: 0, and -inf above it."""
        return tensor.triu(tensor.full([length, length], -math.inf), 1)


def _activation(given: Any) -> Callable[..., Any]:
    if callable(given):
        return given
    known = F.activation.__all__
    require(given in known, f"activation {given!r} is no activation", AttrError, nearest(str(given), known))
    return getattr(F, given)


def _for_branches(name: str, attr: Any, branches: int) -> list[Any]:
    """What the branches of a layer are told of their parameters.

    A list has one for each. One for all stands for all of them; its name, if it has one, gets the branch's number.
    """
    if isinstance(attr, (list, tuple)):
        require(len(attr) == branches, f"{name} is a list of {len(attr)}, the layer has {branches} parts", AttrError)
        return list(attr)
    one = ParamAttr.of(attr)
    if one is None or one.name is None:
        return [attr] * branches
    named = [copy.copy(one) for _ in range(branches)]
    for i, each in enumerate(named):
        each.name = f"{one.name}_{i}"
    return named


def _for_both(name: str, attr: Any) -> tuple[Any, Any]:
    """What encoder and decoder layers are told of their parameters: for two and for three parts of a layer."""
    if not isinstance(attr, (list, tuple)):
        return attr, attr
    require(1 <= len(attr) <= 3, f"{name} is a list of {len(attr)}, not of 1, 2 or 3", AttrError)
    middle = attr[1] if len(attr) == 3 else attr[0]
    return [attr[0], attr[-1]], [attr[0], middle, attr[-1]]


__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip
