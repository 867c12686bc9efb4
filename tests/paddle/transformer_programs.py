"""Transformer blocks with weights that both sides are given: results, gradients, names and shapes of parameters.

All in float64: rounding of float32 grows through three norms, and differs between the BLAS kernels of two CPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import raised, started

SRC = np.sin(np.arange(48.0)).reshape(2, 3, 8)
TGT = np.cos(np.arange(64.0)).reshape(2, 4, 8)
SEEN = np.array([[True, True, False], [False, True, True], [True, False, True]])
CAUSAL = np.triu(np.full((4, 4), -np.inf), 1)
NO_DROPOUT = {"dropout": 0.0}
NEAR = {"": 1e-10}  # also of sums, which are plain numbers


def with_weights(p: Any, outs: Any, feed: dict[str, np.ndarray], training: bool = True) -> Any:
    """The values of `outs`, and of the gradients of all parameters for the sum of the first one times a pattern."""
    main = p.static.default_main_program()
    outs, pairs = list(outs), []
    if training:
        pattern = p.assign(np.arange(8) / 4 - 1).astype("float64")  # Paddle assigns in float32
        pairs = p.static.append_backward(p.sum(outs[0] * pattern))
    exe = started(p)
    for n, w in enumerate(main.all_parameters()):
        size = int(np.prod(w.shape))
        w.set_value(np.sin(np.arange(size) * 0.7 + n).reshape(w.shape) / 2)
    values = exe.run(main, feed=feed, fetch_list=[*outs, *(g for _, g in pairs)])
    named = [(w.name, list(w.shape)) for w in main.all_parameters()]
    grads = [sums_of(g) for g in values[len(outs) :]]
    return {
        "parameters": named, "outs": values[: len(outs)],
        "gradients": dict(zip([w.name for w, _ in pairs], grads, strict=True)),
    }  # fmt: skip


def sums_of(values: np.ndarray) -> list[float]:
    """Two numbers that say what an array holds, and where."""
    flat = values.astype("float64").ravel()
    return [float(np.sqrt(flat @ flat)), float(flat @ np.cos(np.arange(flat.size)))]


def inputs(p: Any) -> tuple[Any, Any, dict[str, np.ndarray]]:
    p.set_default_dtype("float64")
    src, tgt = p.static.data("src", [-1, 3, 8], "float64"), p.static.data("tgt", [-1, 4, 8], "float64")
    return src, tgt, {"src": SRC, "tgt": TGT}


def encoder_layer_post_norm(paddle: Any) -> Any:
    src, _, feed = inputs(paddle)
    return with_weights(paddle, [paddle.nn.TransformerEncoderLayer(8, 2, 16, **NO_DROPOUT)(src)], feed)


def encoder_layer_pre_norm(paddle: Any) -> Any:
    src, _, feed = inputs(paddle)
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", normalize_before=True)
    return with_weights(paddle, [layer(src)], feed)


def encoder_with_masks(paddle: Any) -> Any:
    src, _, feed = inputs(paddle)
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, **NO_DROPOUT, bias_attr=False)
    encoder = paddle.nn.TransformerEncoder(layer, 2, paddle.nn.LayerNorm(8))
    arrays = SEEN, SEEN.astype("int64"), np.where(SEEN, 0, -3.5)
    masks = [paddle.assign(a) for a in arrays]
    return with_weights(paddle, [encoder(src, mask) for mask in masks], feed)


def decoder_layer_post_norm(paddle: Any) -> Any:
    src, tgt, feed = inputs(paddle)
    layer = paddle.nn.TransformerDecoderLayer(8, 2, 16, **NO_DROPOUT)
    return with_weights(paddle, [layer(tgt, src)], feed)


def decoder_pre_norm_with_masks(paddle: Any) -> Any:
    src, tgt, feed = inputs(paddle)
    layer = paddle.nn.TransformerDecoderLayer(8, 2, 16, 0.0, "gelu", normalize_before=True, weight_attr=[None] * 3)
    decoder = paddle.nn.TransformerDecoder(layer, 2, paddle.nn.LayerNorm(8))
    memory_mask = paddle.assign(np.concatenate([SEEN, SEEN[:1]]))
    return with_weights(paddle, [decoder(tgt, src, paddle.assign(CAUSAL), memory_mask)], feed)


def whole_transformer(paddle: Any) -> Any:
    src, tgt, feed = inputs(paddle)
    attrs = {"weight_attr": [None, None], "bias_attr": [None, False, None]}
    network = paddle.nn.Transformer(8, 2, 1, 1, 16, **NO_DROPOUT, **attrs)
    mask = network.generate_square_subsequent_mask(4)
    return with_weights(paddle, [network(src, tgt, tgt_mask=mask), mask], feed)


def in_inference(paddle: Any) -> Any:
    src, tgt, feed = inputs(paddle)
    network = paddle.nn.Transformer(8, 2, 1, 1, 16, dropout=0.5)
    network.eval()
    return with_weights(paddle, [network(src, tgt)], feed, training=False)


def encoder_caches(paddle: Any) -> Any:
    """A sequence at once and in two parts of which the second one sees the first one's keys."""
    src, tgt, feed = inputs(paddle)
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16, **NO_DROPOUT), 2)
    first, cache = encoder(src, cache=encoder.gen_cache(src))
    second, cache = encoder(tgt, cache=cache)
    return with_weights(paddle, [second, first, cache[1].k, cache[1].v], feed)


def decoder_caches(paddle: Any) -> Any:
    src, tgt, feed = inputs(paddle)
    decoder = paddle.nn.TransformerDecoder(paddle.nn.TransformerDecoderLayer(8, 2, 16, **NO_DROPOUT), 2)
    cache = decoder.gen_cache(src)
    zipped = [len(part) for part in decoder.gen_cache(src, do_zip=True)]
    first, cache = decoder(tgt[:, :2], src, cache=cache)
    second, cache = decoder(tgt[:, 2:], src, cache=cache)
    found = with_weights(paddle, [second, first, cache[1][0].k, cache[0][1].v], feed)
    return {**found, "zipped": zipped}


def stacks_have_parameters_of_their_own(paddle: Any) -> Any:
    attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.5))
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(4, 1, 8, weight_attr=attr), 3)
    return [list(encoder.state_dict()), [p.name for p in encoder.parameters()], len(encoder.sublayers())]


def what_is_refused(paddle: Any) -> Any:
    nn = paddle.nn
    return [bool(raised(call)) for call in (
        lambda: nn.TransformerEncoderLayer(8, 3, 16), lambda: nn.TransformerEncoderLayer(0, 1, 16),
        lambda: nn.TransformerEncoderLayer(8, 2, 0), lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="rilu"),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, weight_attr=[None] * 3), lambda: nn.Transformer(weight_attr=[]),
        lambda: nn.TransformerEncoder(nn.Linear(8, 8), 2),
    )]  # fmt: skip
