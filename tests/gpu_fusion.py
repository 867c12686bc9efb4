"""GPU checks of fuse_elementwise: random chains of several shapes as one kernel, against float64 on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from gpucheck import Check, GpuExecutor, each
from random_chains import random_chain

from minigraph.compiler import CompiledProgram
from minigraph.executor import Executor
from minigraph.scope import Scope
from minigraph.strategy import BuildStrategy
from minigraph.types import float64

SHAPES = ((37, 1024), (3, 11, 768), (700, 48), (5, 4096), (2, 9, 50), (1, 300))
SEEDS = 12
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def checks() -> Iterator[Check]:
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        yield Check(f"fusion/float64/{name}", partial(_exact, shape), sanitize=shape == SHAPES[4])
        for dtype in UNIT:
            yield Check(f"fusion/{dtype}/{name}", partial(_rounded, dtype, shape))


def _runs(chain: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The fetched values on the GPU, without the pass and with it."""
    after = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True)).program_for(chain.fetches)
    return tuple(
        GpuExecutor().run(program, chain.feeds, chain.fetches, scope=Scope()) for program in (chain.program, after)
    )  # type: ignore[return-value]


def _exact(shape: tuple[int, ...]) -> None:
    each((f"seed {seed}", partial(_exact_seed, seed, shape)) for seed in range(SEEDS))


def _exact_seed(seed: int, shape: tuple[int, ...]) -> None:
    chain = random_chain(seed, "float64", shape)
    right = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
    for who, found in zip(("unfused", "fused"), _runs(chain), strict=True):
        for name, a, b in zip(chain.fetches, right, found, strict=True):
            error = np.abs(a.astype(float) - b.astype(float)).max(initial=0)
            assert error <= 1e-10 * max(1.0, np.abs(a).max(initial=0)), f"{who} {name} differs by {error:.3g}"


def _rounded(dtype: str, shape: tuple[int, ...]) -> None:
    each((f"seed {seed}", partial(_rounded_seed, seed, dtype, shape)) for seed in range(SEEDS))


def _rounded_seed(seed: int, dtype: str, shape: tuple[int, ...]) -> None:
    """Errors are at most twice those of the unfused run on the GPU."""
    chain, exact = (random_chain(seed, d, shape, smooth=True) for d in (dtype, "float64"))
    exact.feeds = {name: x.astype(float64) if x.dtype.kind in "fV" else x for name, x in chain.feeds.items()}
    right = Executor().run(exact.program, exact.feeds, exact.fetches, scope=Scope())
    unfused, fused = _runs(chain)
    for name, r, a, b in zip(chain.fetches, right, unfused, fused, strict=True):
        peak = np.abs(r).max(initial=0)
        if r.size < 40 or peak < 1e-9:
            continue  # the largest of many errors tells something, one is luck; so is what is 0 but for rounding
        before, after = (np.abs(v.astype(float) - r).max() for v in (a, b))
        assert after <= 2 * max(before, UNIT[dtype] * peak), f"{name}: error {after:.3g}, unfused {before:.3g}"
