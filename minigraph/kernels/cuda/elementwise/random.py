"""Random values: bind functions of ops/elementwise/random.py. The numbers are those of the CPU, see philox.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, Fill, blocks_for
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import float32, float64

from .pointwise import bind_pointwise, compute_type, pack_size

THREADS = 256
WORDS = 4  # of a Philox block, one for each element

Slots = Mapping[str, Any]


def _fill(binder: Binder, function: str, out: Buffer, attrs: Slots, *numbers: float) -> None:
    """out = `function` of its elements' random words and of `numbers`."""
    pack = min(WORDS, pack_size([out], [out.size], [[1]]))
    binder.launch_source(
        _source(T=CUDA_TYPES[out.dtype], C=compute_type(out.dtype), V=pack, FILL=1), function,
        blocks_for(out.size, WORDS * THREADS), THREADS, out, np.uint64(out.size),
        *binder.rng(attrs), *(np.float64(x) for x in numbers),
    )  # fmt: skip


def _source(**defines: Any) -> str:
    head = full_source("record/philox.cuh", tuple((k, str(v)) for k, v in defines.items()))
    return head + read_source("elementwise/random.cu")


def uniform_random(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Uniform numbers in [min, max)."""
    low, high, out = attrs["min"], attrs["max"], outs["Out"]
    computed = float64 if out.dtype == float64 else float32
    largest = np.nextafter(computed.type(high), computed.type(low)) if low < high else high
    _fill(binder, "uniform", out, attrs, low, high - low, largest)


def uniform_random_like(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Uniform numbers in X's shape, or in inference one number."""
    if attrs["is_test"] and attrs["test_value"] is not None:
        bind_pointwise(binder, {"Out": outs["Out"]}, {}, {"Out": "C(value)"}, {"value": attrs["test_value"]})
    else:
        uniform_random(binder, ins, outs, attrs)


def gaussian_random(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Normal numbers."""
    _fill(binder, "normal", outs["Out"], attrs, attrs["mean"], attrs["std"])


def gaussian_random_like(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Normal numbers in X's shape."""
    gaussian_random(binder, ins, outs, attrs)


def truncated_gaussian_random(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Normal numbers given that they lie within 2 std of the mean."""
    _fill(binder, "truncated", outs["Out"], attrs, attrs["mean"], attrs["std"], math.erf(math.sqrt(2)))


def dropout(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X with each element dropped with probability p; Mask is 1 where it was kept."""
    x, out, mask = ins["X"], outs.get("Out"), outs.get("Mask")
    if attrs["is_test"]:
        factor = 1 - attrs["p"] if attrs["mode"] == "downscale_in_infer" else 1.0
        if out is not None:
            bind_pointwise(binder, {"Out": out}, {"X": x}, {"Out": "X * factor"}, {"factor": factor})
        if mask is not None and mask.nbytes:
            binder.calls.append(Fill(mask, 1))
        return
    buffers = [b for b in (x, out, mask) if b is not None]
    pack = pack_size(buffers, [x.size], [[1]] * len(buffers))
    blocks = 2 if x.dtype.itemsize == 2 else 1
    binder.launch_source(
        _source(
            T=CUDA_TYPES[x.dtype], C=compute_type(x.dtype), V=pack, BLOCKS=blocks, HAS_OUT=int(out is not None),
            HAS_MASK=int(mask is not None),
        ), "dropout",
        blocks_for(x.size, WORDS * blocks * THREADS), THREADS,
        x, out or np.uint64(0), mask or np.uint64(0), np.uint64(x.size), *binder.rng(attrs),
        np.uint64(round(attrs["p"] * 2**32)), np.float64(dropout_scale(attrs)),
    )  # fmt: skip


def dropout_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """X_grad = Out_grad scaled as X was where Mask is 1, else 0."""
    inputs = {"Mask": ins["Mask"], "Out_grad": ins["Out_grad"]}
    expressions = {"X_grad": "Mask ? Out_grad * scale : C(0)"}
    bind_pointwise(binder, {"X_grad": outs["X_grad"]}, inputs, expressions, {"scale": dropout_scale(attrs)})


def dropout_scale(attrs: Slots) -> float:
    """The factor on kept elements in training."""
    p = attrs["p"]
    return 1 / (1 - p) if attrs["mode"] == "upscale_in_train" and p < 1 else 1.0
