"""Whether gradients have overflowed, on a GPU: one launch for the gradients of each type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES
from minigraph.kernels.cuda.record.tensors import Tensors, chosen_mode, launch_over

CHUNK = 8192  # elements of a block

Slots = Mapping[str, Any]


def check_finite_and_unscale(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """FoundInfinite of all X; Out = X / Scale where somebody reads it."""
    xs, scale, found, divided = ins["X"], ins["Scale"], outs["FoundInfinite"], outs.get("Out")
    binder.zero(found)
    for dtype in dict.fromkeys(x.dtype for x in xs):
        part = [i for i, x in enumerate(xs) if x.size and x.dtype == dtype]
        if not part:
            continue
        columns = [[xs[i] for i in part]] + ([[divided[i] for i in part]] if divided else [])
        defines = {
            "T": CUDA_TYPES[dtype], "C": compute_type(dtype), "S": CUDA_TYPES[scale.dtype],
            "PACK": 16 // dtype.itemsize,
        }  # fmt: skip
        mode = chosen_mode(binder, len(part), len(columns))
        mode = "table" if mode == "arena" else mode  # which asks for chunks of its own
        launch_over(
            binder, "optimizer/finite.cu", "check_finite", Tensors(columns, [xs[i].size for i in part]), mode, CHUNK,
            scale, found, defines=defines, reads=(scale,),
        )  # fmt: skip
