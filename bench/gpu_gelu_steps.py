"""Whole steps with gelu as Paddle has it by default, its erf form, in bfloat16 and TF32; arms as in gpu_steps.

    python -m bench gpu_gelu_steps --peers torch [--only ffn]

"without hopper_product" is the same step without our kernel for large 16-bit products, the library's products
and kernels after them; "without hopper_tf32" likewise.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .gpu_steps import (
    WIDE,
    StepRow,
    ffn_batch,
    ffn_jax,
    ffn_static,
    ffn_torch,
    ffn_weights,
    linears,
    wide_batch,
    wide_jax,
    wide_static,
    wide_torch,
)
from .gpu_steps_run import GpuSteps

TYPES = {"bf16": ("bfloat16", 2e-2, "hopper_product"), "tf32": ("float32", 5e-3, "hopper_tf32")}


def erf(static: Any, torch: Any, jax: Any) -> dict[str, Any]:
    """Three ways to build the same with gelu's erf form."""
    return {
        "static": partial(static, approximate=False), "torch": partial(torch, approximate="none"),
        "jax": partial(jax, approximate=False),
    }  # fmt: skip


def mlp(kind: str) -> StepRow:
    dtype, tolerance, kernel = TYPES[kind]
    halves = dtype == "bfloat16"
    return StepRow(
        f"mlp_{kind}", f"MLP 4 x 4096, GELU, batch 8192, {kind}, AdamW", dtype, linears(WIDE), wide_batch,
        **erf(wide_static, wide_torch, wide_jax), trains=True, tolerance=tolerance, flops=11 * 2 * 8192 * 4096**2,
        masters=halves, without=(kernel,), note="the peers have float32 parameters beside" if halves else "",
    )  # fmt: skip


def ffn(kind: str, width: int, rows: int) -> StepRow:
    dtype, tolerance, kernel = TYPES[kind]
    layers = f"layer norm, {width}-{4 * width}-{width}, GELU, dropout .1, residual"
    return StepRow(
        f"ffn_{width}_{kind}", f"{layers}; {rows} x 1024 rows, fwd + bwd, {kind}", dtype, ffn_weights(width),
        partial(ffn_batch, rows=rows, width=width), **erf(ffn_static, ffn_torch, ffn_jax), trains=False,
        tolerance=tolerance, drop=0.1, wrt=("x",), flops=6 * 2 * rows * 1024 * 4 * width**2, without=(kernel,),
    )  # fmt: skip


ROWS = tuple(row for kind in TYPES for row in (mlp(kind), ffn(kind, 1024, 8), ffn(kind, 768, 16)))
BENCH = GpuSteps("gpu_gelu_steps", "Whole steps with gelu's erf form, ms; minigraph captured first", ROWS)
