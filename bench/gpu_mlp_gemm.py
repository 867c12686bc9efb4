"""The products of one step of an MLP 784-1024-1024-10, batch 256, float32 with TF32, each inside a CUDA graph.

Arms: tuned is the fused operator with BuildStrategy.autotune, default the same without; plain and plain tuned
are the product alone. All arrays of a step fit in the L2 cache, in training too, so nothing evicts them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .gpu_tf32 import forward, input_gradient, weight_gradient
from .gpu_timing import Case, GpuBench

BATCH = 256
LAYERS = ((784, 1024, "relu"), (1024, 1024, "relu"), (1024, 10, "none"))
REPEATS = 40


def small(case: Case, title: str) -> Case:
    """A product of gpu_tf32 that is shorter than its launch."""
    op, plain = case.programs["default"], case.programs["plain"]
    return replace(
        case, title=title, programs={"tuned": op, "default": op, "plain": plain, "plain tuned": plain}, torch=None,
        unchecked=frozenset({"plain", "plain tuned"}), tuned=frozenset({"tuned", "plain tuned"}), captured=REPEATS,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for number, (inner, columns, activation) in enumerate(LAYERS, 1):
        title = f"forward {number}: {BATCH} x {inner} x {columns}, {activation}"
        yield small(forward((BATCH, inner, columns), activation), title)
    for number, (inner, columns, _) in reversed(list(enumerate(LAYERS, 1))):
        shape = BATCH, inner, columns
        if number > 1:
            yield small(input_gradient(shape), f"dX {number}: {BATCH} x {columns} x {inner}, relu's mask")
        yield small(weight_gradient(shape), f"dW {number}: {inner} x {BATCH} x {columns}, bias gradient")


BENCH = GpuBench(
    "gpu_mlp_gemm", "Products of an MLP 784-1024-1024-10, batch 256, TF32", lambda: list(cases()), ()
)
