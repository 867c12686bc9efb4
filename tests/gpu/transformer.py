"""GPU checks of transformers: training against a CPU, values computed again, gradients of several batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.incubate.optimizer import GradientMergeOptimizer, RecomputeOptimizer
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu.check import Check, GpuExecutor
from tests.support.transformer_model import batches, language_model, losses

STEPS = 8
NEAR = {"float64": 1e-10, "float32": 2e-4}  # relative, of losses of a few steps


def checks() -> Iterator[Check]:
    for dtype in NEAR:
        for before in (True, False):
            name = f"{'pre' if before else 'post'}_norm_{dtype}"
            yield Check(f"transformer/{name}", partial(_trains, before, dtype), product=True)
    for dtype in NEAR:
        for fused in (False, True):
            name = f"{dtype}_{'fused' if fused else 'plain'}"
            yield Check(f"recompute/{name}", partial(_same_bits, dtype, fused), product=True)
            yield Check(f"gradient_merge/{name}", partial(_merges, dtype, fused), product=True)


def compiled(program: Any, fused: bool, **flags: Any) -> CompiledProgram:
    return CompiledProgram(program, BuildStrategy.all(**flags) if fused else BuildStrategy(**flags))


def _trains(normalize_before: bool, dtype: str) -> None:
    """With and without rewrites, against the CPU in float64."""
    exact = losses(*language_model(normalize_before), batches(STEPS))
    for fused in (False, True):
        main, startup, loss = language_model(normalize_before, dtype=dtype)
        found = losses(compiled(main, fused), startup, loss, batches(STEPS), GpuExecutor)
        if dtype == "float64":
            np.testing.assert_allclose(found, exact, rtol=NEAR[dtype])
        else:  # the first values are drawn in float32
            plain = losses(main, startup, loss, batches(STEPS))
            np.testing.assert_allclose(found, plain, rtol=NEAR[dtype])


def _same_bits(dtype: str, fused: bool) -> None:
    """By the flag, and by checkpoints of the program."""
    main, startup, loss = language_model(True, dtype=dtype)
    plain = losses(compiled(main, fused), startup, loss, batches(STEPS), GpuExecutor)
    again = losses(compiled(main, fused, recompute=True), startup, loss, batches(STEPS), GpuExecutor)
    assert again == plain, f"by the flag: {again} instead of {plain}"

    def with_checkpoint(adamw: Any, hidden: Any) -> Any:
        optimizer = RecomputeOptimizer(adamw)
        optimizer._set_checkpoints([hidden])
        return optimizer

    main, startup, loss = language_model(True, dtype=dtype, optimizer=with_checkpoint)
    again = losses(compiled(main, fused), startup, loss, batches(STEPS), GpuExecutor)
    near = 0 if not fused else NEAR[dtype]  # rules may join copies otherwise
    np.testing.assert_allclose(again, plain, rtol=near)


def _merges(dtype: str, fused: bool) -> None:
    """Losses and updates of three runs each, against the CPU."""
    main, startup, loss = language_model(
        False, 0.0, dtype, lambda adamw, hidden: GradientMergeOptimizer(adamw, 3)
    )
    found = losses(compiled(main, fused), startup, loss, batches(STEPS), GpuExecutor)
    np.testing.assert_allclose(found, losses(main, startup, loss, batches(STEPS)), rtol=NEAR[dtype])
    report = compiled(main, fused).memory_report(fetch_list=[loss], place=mg.CUDAPlace(0))
    assert report.planned > 0
