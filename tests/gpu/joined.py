"""GPU checks of kernels/cuda/joined.py: the bits of separate launches, and float64 on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import CUDAPlace
from tests.gpu.check import Check, GpuExecutor, each
from tests.support.joined_heads import apart, random_head

SIZES = (((9,), 20), ((2, 30), 333), ((1,), 27), ((256,), 1024), ((700,), 1500), ((3,), 17))
SEEDS = 8


def checks() -> Iterator[Check]:
    for rows, inner in SIZES:
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            name = f"joined/{dtype}/{'x'.join(map(str, rows))}x{inner}"
            yield Check(name, partial(_same, dtype, rows, inner))
    for dtype in ("float32", "bfloat16"):  # without products of cuBLASLt
        yield Check(f"joined/{dtype}/alone", partial(_same, dtype, (9,), 270, 3, alone=True), sanitize=True)


def _same(dtype: str, rows: tuple[int, ...], inner: int, seeds: int = SEEDS, alone: bool = False) -> None:
    counts: list[int] = []
    each((f"seed {seed}", partial(_seed, seed, dtype, rows, inner, alone, counts)) for seed in range(seeds))
    assert sum(counts) >= seeds // 4, f"joined: {counts}"


def _seed(seed: int, dtype: str, rows: tuple[int, ...], inner: int, alone: bool, counts: list[int]) -> None:
    chain = random_head(seed, dtype, rows, inner, alone=alone)
    program = CompiledProgram(chain.program, BuildStrategy.all()).program_for(chain.fetches, place=CUDAPlace(0))
    exe = GpuExecutor()
    found = [exe.run(program, chain.feeds, chain.fetches, scope=Scope()) for _ in range(3)][-1]
    counts.append(sum(len(plan.bound.binder.joined) for plan in exe._plans.values()))
    with apart():
        others = GpuExecutor().run(program, chain.feeds, chain.fetches, scope=Scope())
    for name, a, b in zip(chain.fetches, found, others, strict=True):
        assert a.tobytes() == b.tobytes(), f"{name} differs from what separate launches give"
    if dtype == "float64":
        right = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
        for name, a, b in zip(chain.fetches, right, found, strict=True):
            error = np.abs(a - b).max(initial=0)
            assert error <= 1e-10 * max(1.0, np.abs(a).max(initial=0)), f"{name} differs by {error:.3g}"
