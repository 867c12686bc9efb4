"""Work on an array in blocks, spread over the cores that this process may use.

NumPy releases the interpreter lock inside its loops, so threads compute at the same time while
each block is large enough. The calling thread works too; helpers take what it has not begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache

Body = Callable[[int, int], None]

SMALLEST = 32768  # elements that are worth asking for once more
PATIENCE = 2e-4  # seconds


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_blocks(size: int, block: int, body: Body) -> None:
    """body(start, stop) for consecutive blocks of at most `block` elements that cover range(size).

    Blocks are of one size, a multiple of 64, and as many for each core, so that all end together.
    Blocks run in any order on any thread, so `body` writes only between start and stop. After an
    exception no new block begins; it is raised here when all threads have stopped.
    """
    blocks = -(-size // block)
    threads = min(cores(), blocks)
    if threads > 1:
        blocks = -(-blocks // threads) * threads
        block = min(block, -(-size // (64 * blocks)) * 64)
    _run([(start, min(start + block, size)) for start in range(0, size, block)], threads, body)


def for_shares(size: int, body: Body) -> None:
    """Likewise for a body that is as fast on any number of elements.

    Helpers begin late and cores differ: most elements are dealt out first, then most of the rest, so that all end
    together.
    """
    threads = min(cores(), -(-size // SMALLEST))
    spans, start = [], 0
    while start < size:
        share = max(SMALLEST, (size - start) * 2 // (3 * threads) // 64 * 64) if threads > 1 else size
        for _ in range(threads):
            spans.append((start, min(start + share, size)))
            start = spans[-1][1]
    _run([span for span in spans if span[0] < span[1]], threads, body)


def _run(blocks: Sequence[tuple[int, int]], threads: int, body: Body) -> None:
    """The blocks on so many threads, the caller's among them."""
    spans = iter(blocks)  # an iterator hands out each block once, whichever thread asks

    def work() -> None:
        try:
            for start, stop in spans:
                body(start, stop)
        except BaseException:
            for _ in spans:  # leave nothing to the other threads
                pass
            raise

    helpers = threads - 1
    if helpers <= 0:
        return work()
    # a copy of the context for each: np.errstate of the caller holds in helpers too
    pending = [_pool(helpers).submit(copy_context().run, work) for _ in range(helpers)]
    try:
        work()
        _look_out(pending)
    finally:
        # one that has not begun may wait behind the caller itself, and there is nothing left for it
        failures = [f.exception() for f in pending if not f.cancel()]
    for failure in failures:
        if failure is not None:
            raise failure


def _look_out(pending: Sequence[Future[None]]) -> None:
    """Wait a little without falling asleep: to wake up takes longer than what helpers have left, usually."""
    end = time.perf_counter() + PATIENCE
    while any(f.running() for f in pending) and time.perf_counter() < end:
        time.sleep(0)  # lets go of the interpreter lock, which helpers need to finish


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="minigraph")


if hasattr(os, "register_at_fork"):
    # a forked child has the pools of its parent, but not their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
