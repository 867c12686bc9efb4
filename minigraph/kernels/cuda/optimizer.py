"""Parameter updates on a GPU: bind functions of minigraph/ops/optimizer.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...types import float64
from .binder import Binder, blocks_for, i64
from .buffer import CUDA_TYPES, Buffer
from .pointwise import compute_type, pack_size

THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 8  # 2048 threads, all that it holds
NORM_BLOCKS = 1024  # the same on every device, so that sums are
NORM_PACKS = 4  # accesses per thread before a further block is used

Slots = Mapping[str, Any]


def _update(binder: Binder, function: str, param: Buffer, rate: Buffer, arrays: Sequence[Buffer], *args: Any) -> None:
    """Launch `function` over all elements of `param`; `arrays` are those that it reads or writes element by element."""
    pack = pack_size(arrays, [param.size], [[1]] * len(arrays))
    blocks = min(blocks_for(param.size, THREADS * pack), binder.device.multiprocessors * BLOCKS_PER_MULTIPROCESSOR)
    defines = {
        "T": CUDA_TYPES[param.dtype], "C": compute_type(param.dtype), "L": CUDA_TYPES[rate.dtype], "V": pack,
    }  # fmt: skip
    binder.launch("optimizer.cu", function, blocks, THREADS, *args, defines=defines)


def _targets(binder: Binder, ins: Slots, outs: Slots, *slots: str) -> list[Buffer]:
    """Where the new values of these input slots go; scratch for those that nobody wants."""
    return [outs.get(f"{s}Out") or binder.scratch(ins[s].shape, ins[s].dtype) for s in slots]


def sgd(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """ParamOut = Param - LearningRate * Grad"""
    param, grad, rate = ins["Param"], ins["Grad"], ins["LearningRate"]
    out = outs["ParamOut"]
    _update(binder, "sgd", param, rate, [param, grad, out], param, grad, rate, out, i64(param.size))


def momentum(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * (VelocityOut or its look-ahead)"""
    read = [ins[slot] for slot in ("Param", "Grad", "Velocity")]
    written = _targets(binder, ins, outs, "Param", "Velocity")
    rate = ins["LearningRate"]
    _update(
        binder, "momentum", read[0], rate, read + written, *read, rate, *written,
        i64(read[0].size), np.float64(attrs["mu"]), i64(attrs["use_nesterov"]),
    )  # fmt: skip


def adam(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """One step of Adam; the powers of beta are multiplied after it."""
    _adam(binder, ins, outs, attrs, 0.0, 1.0)


def adamw(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Param *= 1 - lr * coeff, then one step of Adam."""
    _adam(binder, ins, outs, attrs, attrs["coeff"] if attrs["with_decay"] else 0.0, attrs["lr_ratio"])


def _adam(binder: Binder, ins: Slots, outs: Slots, attrs: Slots, decay: float, lr_ratio: float) -> None:
    param, grad, rate = ins["Param"], ins["Grad"], ins["LearningRate"]
    moments, powers = [ins["Moment1"], ins["Moment2"]], [ins["Beta1Pow"], ins["Beta2Pow"]]
    written = _targets(binder, ins, outs, "Param", "Moment1", "Moment2")
    betas = np.float64(attrs["beta1"]), np.float64(attrs["beta2"])
    _update(
        binder, "adam", param, rate, [param, grad, *moments, *written], param, grad, rate, *moments, *powers, *written,
        i64(param.size), *betas, np.float64(attrs["epsilon"]), np.float64(decay), np.float64(lr_ratio),
    )  # fmt: skip
    binder.launch(
        "optimizer.cu", "powers", 1, 1, *powers, *_targets(binder, ins, outs, "Beta1Pow", "Beta2Pow"), *betas
    )


def squared_l2_norm(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the sum of X^2, added in double."""
    x, out = ins["X"], outs["Out"]
    if x.size == 0:
        return binder.zero(out)
    pack = pack_size([x], [x.size], [[1]])
    blocks = min(blocks_for(x.size, THREADS * pack * NORM_PACKS), NORM_BLOCKS)
    sums = binder.scratch((blocks,), float64)
    defines = {"T": CUDA_TYPES[x.dtype], "C": compute_type(x.dtype), "V": pack, "NORM": 1}
    binder.launch("optimizer.cu", "squared_norm", blocks, THREADS, x, sums, i64(x.size), defines=defines)
    return binder.launch("optimizer.cu", "norm_total", 1, THREADS, sums, out, i64(blocks), defines=defines)
