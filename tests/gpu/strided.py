"""GPU checks of Q, K and V that are read where they lie inside a projection: the bits of copies, and near float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minigraph.program.scope import Scope
from minigraph.runtime.cuda import strided
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.executor import Executor
from minigraph.runtime.options import RunOptions
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import TensorType, as_dtype
from tests.gpu.check import DTYPES, Check, GpuExecutor, assert_like_cpu, assert_near, each
from tests.support.random_programs import Case
from tests.support.strided_programs import SPELLINGS, packed, strided_program

SMALL = {  # kernels: types, sizes that they take, whether initcheck knows that the copy engine wrote what they read
    "exact": ("float64", {"s": 20, "h": 2, "d": 6}, False),
    "mma/float32": ("float32", {"s": 70, "h": 2, "d": 32}, False),
    "mma/bfloat16": ("bfloat16", {"s": 70, "h": 2, "d": 40}, False),
    "wgmma 64": ("bfloat16", {"s": 200, "h": 2, "d": 64}, True),
    "wgmma 128": ("bfloat16", {"s": 300, "h": 1, "d": 104}, True),
    "wgmma 256": ("float16", {"s": 150, "h": 1, "d": 256}, False),
}  # fmt: skip
PROGRAMS, CHUNK = 60, 20


def checks() -> Iterator[Check]:
    for spelling in SPELLINGS:
        for dtype in DTYPES:
            yield Check(f"attention/strided/{spelling}/{dtype}", partial(_spelled, spelling, dtype))
    for name, (dtype, sizes, copied) in SMALL.items():
        run = partial(_small, name.split("/")[0].split()[0], dtype, sizes)
        yield Check(f"attention/strided/small/{name}", run, sanitize=True, unwritten=copied)
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"attention/strided/programs/{first:03}", partial(_programs, first))


def run(case: Case, runs: int = 1, executor: Any = None, **flags: Any) -> list[np.ndarray]:
    """What the case fetches in the last of some runs."""
    scope, executor = Scope(), executor or GpuExecutor()
    for name, value in case.values.items():
        scope.write(name, value.copy())
    compiled = CompiledProgram(case.program, BuildStrategy(**flags))
    for _ in range(runs - 1):
        executor.run(compiled, case.feeds, case.fetches, scope=scope)
    return executor.run(compiled, case.feeds, case.fetches, scope=scope)


def copied(case: Case, **flags: Any) -> list[np.ndarray]:
    """Likewise, with a copy of Q, K and V each."""
    saved, strided.by_strides = strided.by_strides, lambda *_, **__: iter(())
    try:
        return run(case, **flags)
    finally:
        strided.by_strides = saved


def lies(case: Case, **options: Any) -> BoundProgram:
    """The plan; an error where it does not read all three where they lie."""
    types = {name: TensorType(x.shape, x.dtype) for name, x in case.feeds.items()}
    plan = bind_program(case.program, types, case.fetches, options=RunOptions(**options))
    step = next(s for s in plan.schedule.steps if s.op.type == "memory_efficient_attention")
    assert all(plan.buffers[i].steps is not None for i in step.inputs[:3]), plan.schedule.remarks
    return plan


def in_float64(case: Case, wide: Case) -> Case:
    """The float64 form of a case, with its numbers."""
    wide.feeds = {name: x.astype(float) for name, x in case.feeds.items()}
    wide.values = {name: x.astype(float) for name, x in case.values.items()}
    return wide


def _spelled(spelling: str, dtype: str) -> None:
    facts = {"s": 200, "h": 3, "d": 64, "causal": spelling != "split"}
    case = packed(spelling, dtype, **facts)
    lies(case)
    found = run(case)
    for other in (copied(case), run(case, runs=4)):  # the later runs are a captured graph
        for name, a, b in zip(case.fetches, found, other, strict=True):
            assert a.tobytes() == b.tobytes(), f"{name} has other bits"
    for name, a, b in zip(case.fetches, found, run(case, fuse_grad_accumulation=True), strict=True):
        np.testing.assert_array_equal(a, b, name)  # but for -0.0, to which a sum of slices' gradients adds 0.0
    exact = run(in_float64(case, packed(spelling, "float64", **facts)), executor=Executor())
    cpu = run(case, executor=Executor())
    for name, a, b, e in zip(case.fetches, found, cpu, exact, strict=True):
        least = 4e-6 * float(np.max(np.abs(e))) if dtype == "float32" else 1e-12
        assert_like_cpu(a, b, e, as_dtype(dtype), name, least)


def _small(kernel: str, dtype: str, sizes: dict[str, int]) -> None:
    flags = {"attention_kernel": kernel}
    for spelling in ("split", "turned"):
        case = packed(spelling, dtype, causal=spelling == "turned", **sizes)
        for name, a, b in zip(case.fetches, run(case, **flags), copied(case, **flags), strict=True):
            assert a.tobytes() == b.tobytes(), f"{name} has other bits"


def _programs(first: int) -> None:
    each((f"seed {seed}", partial(_program, seed)) for seed in range(first, first + CHUNK))


def _program(seed: int) -> None:
    case = strided_program(seed)
    for name, a, b in zip(case.fetches, run(case, runs=3), run(case, executor=Executor()), strict=True):
        assert_near(a, b, 1e-11, f"{name} of {case.description}")
