"""Elements by position: bind functions of minigraph/ops/movement/index.py and embedding.py (slices: movement.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import pack_size
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from .add_rows import bind_add_rows, bind_look
from .movement import WORDS, Axis, bits, lanes_for, numbering, word_bytes

THREADS = 256
WORDS_PER_LANE = 8  # of one row, as in `take`
NO_PADDING = -1

Slots = Mapping[str, Any]


def bind_take(
    binder: Binder, x: Buffer, index: Buffer, out: Buffer, axis: int, low: int, padding: int = NO_PADDING
) -> None:
    """Out is X with `axis` replaced by the positions `index`, integers in [low, X's size along it)."""
    if out.size == 0:
        return bind_look(binder, index, low, x.shape[axis])
    outer, size, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    word = word_bytes(x.dtype.itemsize, [Axis(inner, 1, 1)], (), min(x.alignment, out.alignment))
    words = inner * x.dtype.itemsize // word
    lanes = lanes_for(words)
    pieces = blocks_for(words, lanes * WORDS_PER_LANE)
    binder.launch(
        "movement/index.cu", "take", blocks_for(outer * index.size * pieces, THREADS // lanes), THREADS, x, index, out,
        i64(outer), i64(index.size), i64(size), i64(words), i64(pieces), i64(low), i64(padding),
        *binder.report(f"out of range [{low}, {size})"),
        defines={
            "W": WORDS[word], "INDEX": CUDA_TYPES[index.dtype], "LANES": lanes,
            "J": numbering(outer * index.size * pieces),
        },
    )  # fmt: skip


def gather(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the slices of X at positions Index along an axis; negative ones count from the back."""
    x, axis = ins["X"], attrs["axis"] % ins["X"].ndim
    bind_take(binder, x, ins["Index"], outs["Out"], axis, low=-x.shape[axis])


def gather_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """X_grad's slices are sums of Out_grad's."""
    out = outs["X_grad"]
    axis = attrs["axis"] % out.ndim
    bind_add_rows(binder, ins["Index"], ins["Out_grad"], out, axis, low=-out.shape[axis])


def embedding(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the rows of W at Ids, zero for padding_idx."""
    w = ins["W"]
    bind_take(binder, w, ins["Ids"], outs["Out"], 0, low=0, padding=_padding(attrs, w))


def embedding_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """W_grad's rows are sums of Out_grad's, zero for padding_idx."""
    out = outs["W_grad"]
    bind_add_rows(binder, ins["Ids"], ins["Out_grad"], out, 0, low=0, padding=_padding(attrs, out))


def _padding(attrs: Slots, w: Buffer) -> int:
    return NO_PADDING if attrs["padding_idx"] is None else attrs["padding_idx"] % w.shape[0]


def one_hot(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out[..., k] = 1 where X[...] == k, else 0."""
    x, out = ins["X"], outs["Out"]
    binder.zero(out)
    binder.launch(
        "movement/index.cu", "one_hot", blocks_for(x.size, THREADS), THREADS, x, out, i64(x.size), i64(attrs["depth"]),
        *binder.report(f"out of range [0, {attrs['depth']})"),
        defines={"INDEX": CUDA_TYPES[x.dtype], "T": CUDA_TYPES[out.dtype]},
    )  # fmt: skip


def tril_triu(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the lower or upper triangle of the last two axes of X, zeros elsewhere."""
    x, out = bits(ins["X"]), bits(outs["Out"])
    if out.size == 0:
        return
    rows, columns = x.shape[-2:]
    pack = pack_size([x, out], [columns], [[1], [1]])
    binder.launch(
        "movement/index.cu", "triangle", blocks_for(x.size // pack, THREADS), THREADS, x, out, i64(x.size // pack),
        i64(rows), i64(columns), i64(attrs["diagonal"]),
        defines={
            "W": CUDA_TYPES[x.dtype], "V": pack, "LOWER": "true" if attrs["lower"] else "false",
            "I": numbering(x.size),
        },
    )  # fmt: skip
