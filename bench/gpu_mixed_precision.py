"""Whole steps that `static.amp.decorate` casts, against PyTorch's autocast and compiler; arms as in gpu_steps.

    python -m bench gpu_mixed_precision --peers torch [--only mlp_O2_bfloat16]

Parameters and data are float32 for all. With O2 minigraph keeps 16-bit parameters and float32 copies; with O1, as
under autocast, a step casts float32 parameters. float16 has dynamic loss scaling: an operator here, a GradScaler there.
"""

from __future__ import annotations

import itertools

from .gpu_steps import WIDE, StepRow, linears, wide_batch, wide_jax, wide_static, wide_torch
from .gpu_steps_run import GpuSteps


def mlp(level: str, dtype: str) -> StepRow:
    return StepRow(
        f"mlp_{level}_{dtype}", f"MLP 4 x 4096, GELU(tanh), batch 8192, {level} {dtype}, AdamW", "float32",
        linears(WIDE), wide_batch, wide_static, wide_torch, wide_jax, trains=True, tolerance=2e-2,
        flops=11 * 2 * 8192 * 4096**2, amp={"level": level, "dtype": dtype},
    )  # fmt: skip


ROWS = tuple(mlp(level, dtype) for level, dtype in itertools.product(("O2", "O1"), ("bfloat16", "float16")))
TITLE = "Whole steps in mixed precision, ms; minigraph captured first"
BENCH = GpuSteps("gpu_mixed_precision", TITLE, ROWS, peers=("torch",))
