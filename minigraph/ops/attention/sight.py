"""Which keys a query sees, and which probabilities dropout keeps, as arrays: what attention written out needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.kernels import philox
from minigraph.kernels.cpu.attention import check_lengths
from minigraph.opdef import Ints, op
from minigraph.types import TensorType, bool_, float32, float64

from .attention import LAYOUTS, check_blocks, scores_shape, seen_positions


@op("Seen, Kept?", no_need_buffer={"Q", "K"}, gpu="attention.attention", traits={"nondifferentiable"})
def attention_sight(
    Q, K, CuSeqlensQ=None, CuSeqlensK=None, Key: Any = None, Blocks=None, *, layout: str = "bshd", causal: bool = False,
    bottom_right: bool = False, window: Ints | None = None, dropout: float = 0.0, is_test: bool = False,
    block_size: int | None = None, needs=("Seen", "Kept"),
):  # fmt: skip
    """What memory_efficient_attention with these inputs and attributes sees and drops; Q and K give sizes alone.

    Seen   bool [Sq, Sk], of Blocks for each head [H, Sq, Sk]: causal, window, packed sequences, blocks
    Kept   [B, H, Sq, Sk] ([B, Sq, Sk]), float64 for float64, else float32: the dropout factors of the probabilities,
           0 or 1 / (1 - dropout)
    """
    shape = scores_shape(Q.shape, K.shape, layout)
    for lengths, name, size in ((CuSeqlensQ, "CuSeqlensQ", shape[-2]), (CuSeqlensK, "CuSeqlensK", shape[-1])):
        if lengths is not None:
            check_lengths(lengths, size, name)
    seen = seen_positions(
        shape[-2], shape[-1], causal, bottom_right, window, CuSeqlensQ, CuSeqlensK, Blocks, block_size
    )
    if "Kept" not in needs:
        return seen, None
    dtype = factors_type(Q.dtype)
    kept = np.ones(shape, dtype)
    if dropout > 0 and not is_test:
        words = tuple(int(w) for w in Key)
        kept = philox.keep_mask(words, shape, dropout).astype(dtype) * dtype.type(1 / (1 - dropout))
    return seen, kept


def factors_type(dtype: np.dtype) -> np.dtype:
    """The type in which attention is written out."""
    return float64 if dtype == float64 else float32


@attention_sight.infer
def _(Q, K, CuSeqlensQ, CuSeqlensK, Key, Blocks, *, layout, causal, bottom_right, window, dropout, is_test, block_size):
    require(Q.is_float, f"Q must be a float, is {Q.dtype}", DTypeError)
    require(layout in LAYOUTS, f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    require(dropout == 0 or is_test or Key is not None, f"dropout {dropout} needs Key", hint="random_key() makes one")
    shape = scores_shape(Q.shape, K.shape, layout)
    check_blocks(Blocks, block_size, shape, CuSeqlensQ)
    heads = () if Blocks is None else Blocks.shape[:-2]
    return TensorType((*heads, *shape[-2:]), bool_), TensorType(shape, factors_type(Q.dtype))


@attention_sight.samples
def _(rng):
    key = np.array([7, 3, 1])
    q, k = rng.normal(size=(2, 5, 4, 3)), rng.normal(size=(2, 7, 2, 3))
    yield (q, k), {"causal": True, "bottom_right": True}
    yield (q[:, :, 0].copy(), k[:, :, 0].copy(), None, None, key), {"dropout": 0.4, "window": (1, 2)}
    yield (q, k, None, None, key), {"dropout": 0.4, "layout": "bhsd", "is_test": True}
    yield (q[:1], k[:1], np.array([0, 2, 4]), np.array([0, 3, 7]), key), {"dropout": 0.3, "causal": True}
    yield (q, k, None, None, None, rng.random((4, 3, 4)) < 0.5), {"block_size": 2, "window": (3, 3)}
    yield (q, k, None, None, None, rng.random((2, 2)) < 0.5), {"block_size": 4}
