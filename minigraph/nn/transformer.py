"""Encoders and decoders of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph import tensor
from minigraph.errors import AttrError, raise_unknown, require
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.program.default_dtype import default_dtype

from . import functional as F
from .activation_layers import Dropout
from .attention import MultiHeadAttention
from .container import LayerList
from .layer import Layer
from .layers import Linear
from .norm_layers import LayerNorm

ACTIVATIONS = ("relu", "gelu", "silu", "swish", "elu", "selu", "leaky_relu", "relu6", "mish", "tanh", "sigmoid")


class _TransformerLayer(Layer):
    """What layers of encoders and decoders share: attentions, then two linear maps, each with a residual.

    d_model           size of inputs and results, a multiple of nhead
    dim_feedforward   size between the two linear maps
    dropout           of each residual; attn_dropout of probabilities, act_dropout behind the activation, both
                      `dropout` for None
    normalize_before  normalise what goes into each part, not what comes out
    weight_attr, bias_attr  for all, or a list: one for each attention and one for the linear maps
    """

    attentions: tuple[str, ...]

    @whole
    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float = 0.1, activation: str = "relu",
        attn_dropout: float | None = None, act_dropout: float | None = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        call, count = type(self).__name__, len(self.attentions) + 1
        require(dim_feedforward > 0, f"dim_feedforward must be positive, is {dim_feedforward}", AttrError)
        if activation not in ACTIVATIONS:
            raise_unknown(f"activation of {call}", activation, ACTIVATIONS, AttrError)
        self._config = {
            "d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "dropout": dropout,
            "activation": activation, "attn_dropout": attn_dropout, "act_dropout": act_dropout,
            "normalize_before": normalize_before, "weight_attr": weight_attr, "bias_attr": bias_attr,
        }  # fmt: skip
        self.normalize_before = normalize_before
        weights, biases = _one_each(weight_attr, count, "weight_attr"), _one_each(bias_attr, count, "bias_attr")
        attention_dropout = dropout if attn_dropout is None else attn_dropout
        for name, weight, bias in zip(self.attentions, weights, biases, strict=False):
            self.add_sublayer(name, MultiHeadAttention(
                d_model, nhead, dropout=attention_dropout, weight_attr=weight, bias_attr=bias,
            ))  # fmt: skip
        self.linear1 = Linear(d_model, dim_feedforward, weights[-1], biases[-1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[-1], biases[-1])
        for place in range(1, count + 1):
            self.add_sublayer(f"norm{place}", LayerNorm(d_model))
        for place in range(1, count + 1):
            self.add_sublayer(f"dropout{place}", Dropout(dropout))
        self.activation: Callable[[Variable], Variable] = getattr(F, activation)

    def part(self, place: int, x: Variable, call: Callable[[Variable], Variable]) -> Variable:
        """x + dropout(call(x)), normalised."""
        norm, dropout = self._sub_layers[f"norm{place}"], self._sub_layers[f"dropout{place}"]
        out = tensor.add(x, dropout(call(norm(x) if self.normalize_before else x)))
        return out if self.normalize_before else norm(out)

    def fed_forward(self, x: Variable) -> Variable:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def attended(
        self, place: int, x: Variable, memory: Variable | None, mask: Variable | None, cache: Any
    ) -> tuple[Variable, Any]:
        """x after one attention, to itself where memory is None, and that attention's new cache."""
        made: list[Any] = [cache]

        def call(query: Variable) -> Variable:
            key = query if memory is None else memory
            found = self._sub_layers[self.attentions[place - 1]](query, key, key, mask, cache)
            if cache is None:
                return found
            out, made[0] = found
            return out

        return self.part(place, x, call), made[0]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._config.items() if not name.endswith("_attr"))


class TransformerEncoderLayer(_TransformerLayer):
    """Attention of a text to itself, then two linear maps with an activation between them.

    Source: Vaswani and others, Attention Is All You Need, arXiv:1706.03762.
    """

    attentions = ("self_attn",)
    self_attn: MultiHeadAttention

    @whole
    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Any:
        """The result [B, S, d_model] of src [B, S, d_model]; with a cache (result, new cache).

        src_mask  broadcasts to [B, nhead, S, S]: bool or int, a place is seen where it is not 0; or float, added
        """
        out, cache = self.attended(1, src, None, src_mask, cache)
        out = self.part(2, out, self.fed_forward)
        return out if cache is None else (out, cache)

    def gen_cache(self, src: Variable) -> Any:
        """An empty cache for the batch of `src`."""
        return self.self_attn.gen_cache(src, type=MultiHeadAttention.Cache)


class TransformerDecoderLayer(_TransformerLayer):
    """Attention of a text to itself, then to an encoder's result, then two linear maps."""

    attentions = ("self_attn", "cross_attn")
    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention

    @whole
    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Variable | None = None, memory_mask: Variable | None = None,
        cache: Any = None,
    ) -> Any:  # fmt: skip
        """The result [B, T, d_model] of tgt [B, T, d_model] beside memory [B, S, d_model]; with a cache a pair.

        tgt_mask     broadcasts to [B, nhead, T, T], memory_mask to [B, nhead, T, S]
        cache        (of the text so far, of memory), as gen_cache() makes it
        """
        own, other = (None, None) if cache is None else cache
        out, own = self.attended(1, tgt, None, tgt_mask, own)
        out, other = self.attended(2, out, memory, memory_mask, other)
        out = self.part(3, out, self.fed_forward)
        return out if cache is None else (out, (own, other))

    def gen_cache(self, memory: Variable) -> tuple[Any, Any]:
        """An empty cache for the text and one of the keys and values of `memory`."""
        return (
            self.self_attn.gen_cache(memory, type=MultiHeadAttention.Cache),
            self.cross_attn.gen_cache(memory, memory, type=MultiHeadAttention.StaticCache),
        )


class _Stack(Layer):
    """`num_layers` layers like the first, then `norm`."""

    def __init__(self, layer: Layer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__()
        require(num_layers > 0, f"num_layers must be positive, is {num_layers}", AttrError)
        config = getattr(layer, "_config", {})
        self.layers = LayerList([layer, *(type(layer)(**config) for _ in range(num_layers - 1))])
        self.num_layers, self.norm = num_layers, norm

    def through(self, out: Variable, call: Callable[..., Any], cache: Any) -> Any:
        """`call(layer, out, cache)` of one layer after the other; with caches (result, list of new caches)."""
        made = []
        for i, layer in enumerate(self.layers):
            out = call(layer, out, None if cache is None else cache[i])
            if cache is not None:
                out, one = out
                made.append(one)
        out = out if self.norm is None else self.norm(out)
        return out if cache is None else (out, made)


class TransformerEncoder(_Stack):
    """`num_layers` encoder layers, the first is `encoder_layer`, the others new ones with its settings; then `norm`."""

    def __init__(self, encoder_layer: Layer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    @whole
    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Any:
        """[B, S, d_model] of src of that shape; with a list of caches (result, list of new caches)."""
        return self.through(src, lambda layer, x, one: layer(x, src_mask=src_mask, cache=one), cache)

    def gen_cache(self, src: Variable) -> list[Any]:
        """A cache for each layer."""
        return [layer.gen_cache(src) for layer in self.layers]  # pyright: ignore[reportAttributeAccessIssue]


class TransformerDecoder(_Stack):
    """`num_layers` decoder layers, the first is `decoder_layer`, the others new ones with its settings; then `norm`."""

    def __init__(self, decoder_layer: Layer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    @whole
    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Variable | None = None, memory_mask: Variable | None = None,
        cache: Any = None,
    ) -> Any:  # fmt: skip
        """[B, T, d_model] of tgt of that shape and memory [B, S, d_model]; with caches (result, list of new ones)."""
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        return self.through(tgt, lambda layer, x, one: layer(x, memory, **masks, cache=one), cache)

    def gen_cache(self, memory: Variable, do_zip: bool = False) -> list[Any]:
        """A pair of caches for each layer; do_zip gives the first ones of all, then the second ones."""
        pairs = [layer.gen_cache(memory) for layer in self.layers]  # pyright: ignore[reportAttributeAccessIssue]
        return list(zip(*pairs, strict=True)) if do_zip else pairs


class Transformer(Layer):
    """An encoder of one text and a decoder that writes another: `decoder(tgt, encoder(src))`.

    custom_encoder, custom_decoder  layers to take instead
    weight_attr, bias_attr          for all, or a list: [attentions, linear maps] or
                                    [attention to itself, attention to the encoder, linear maps]
    Source: Vaswani and others, Attention Is All You Need, arXiv:1706.03762.
    """

    @whole
    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu", attn_dropout: float | None = None,
        act_dropout: float | None = None, normalize_before: bool = False, weight_attr: Any = None,
        bias_attr: Any = None, custom_encoder: Layer | None = None, custom_decoder: Layer | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_model, self.nhead = d_model, nhead
        weights, biases = _one_each(weight_attr, 3, "weight_attr"), _one_each(bias_attr, 3, "bias_attr")

        def settings(first: int) -> tuple[Any, ...]:
            places = [*range(first), 2]
            sizes = d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout, normalize_before
            return *sizes, [weights[i] for i in places], [biases[i] for i in places]

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings(1)), num_encoder_layers, LayerNorm(d_model)
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings(2)), num_decoder_layers, LayerNorm(d_model)
        )

    @whole
    def forward(
        self, src: Variable, tgt: Variable, src_mask: Variable | None = None, tgt_mask: Variable | None = None,
        memory_mask: Variable | None = None,
    ) -> Variable:  # fmt: skip
        """The result [B, T, d_model] for src [B, S, d_model] and tgt [B, T, d_model]; masks as in the layers."""
        memory = self.encoder(src, src_mask=src_mask)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Variable:
        """A float mask [length, length]: 0 where a place may look, itself and before, -inf behind."""
        return tensor.triu(tensor.full([length, length], float("-inf"), default_dtype()), 1)


def _one_each(attr: Any, count: int, name: str) -> list[Any]:
    """An attribute for each part: `count` of one, of [all], or [attentions, linear maps] repeated; or a whole list."""
    if not isinstance(attr, (list, tuple)):
        return [attr] * count
    if len(attr) == count:
        return list(attr)
    require(len(attr) in (1, 2), f"{name} must be one, or a list of 1, 2 or {count}, is {attr!r}", AttrError)
    return [*[attr[0]] * (count - 1), attr[-1]]


__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip
