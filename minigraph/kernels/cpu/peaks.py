"""Peaks of a CPU, measured: a product that fits its caches, a copy that does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from minigraph.kernels.cores import get_num_threads
from minigraph.kernels.parallel import for_blocks
from minigraph.kernels.peaks import Peaks

from .product import one_thread_in_blas, product

SIDE, COPIED, TRIES = 768, 1 << 26, 5  # of the matrices; bytes


def peaks() -> Peaks:
    """With the threads that kernels may use now; measured once for each number of them, in .1 seconds."""
    return _measured(get_num_threads())


@cache
def _measured(threads: int) -> Peaks:
    source, to = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)

    def part(start: int, stop: int) -> None:
        np.copyto(to[start:stop], source[start:stop])

    bandwidth = 2 * COPIED / _best(lambda: for_blocks(COPIED, 1 << 22, part))
    flops = {}
    for dtype in ("float32", "float64"):
        a = np.ones((SIDE, SIDE), dtype)
        out = np.empty_like(a)
        with one_thread_in_blas():
            flops[dtype] = 2 * SIDE**3 / _best(lambda a=a, out=out: product(a, a, out))
    flops |= {"float16": flops["float32"], "bfloat16": flops["float32"]}  # they are computed in float32
    return Peaks(f"CPU, {threads} threads", bandwidth, flops, "measured here")


def _best(work: Callable[[], object]) -> float:
    """Seconds of the shortest of some tries."""
    found = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
