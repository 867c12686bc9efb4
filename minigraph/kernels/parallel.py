"""Work on an array in blocks, spread over the cores that this process may use.

NumPy releases the interpreter lock inside its loops, so threads compute at the same time while
each block is large enough. The calling thread works too; helpers take what it has not begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_blocks(size: int, block: int, body: Callable[[int, int], None]) -> None:
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
    starts = iter(range(0, size, block))  # a range hands out each start once, whichever thread asks

    def work() -> None:
        try:
            for start in starts:
                body(start, min(start + block, size))
        except BaseException:
            for _ in starts:  # leave nothing to the other threads
                pass
            raise

    helpers = threads - 1
    if helpers <= 0:
        return work()
    # a copy of the context for each: np.errstate of the caller holds in helpers too
    pending = [_pool(helpers).submit(copy_context().run, work) for _ in range(helpers)]
    try:
        work()
    finally:
        # one that has not begun may wait behind the caller itself, and there is nothing left for it
        failures = [f.exception() for f in pending if not f.cancel()]
    for failure in failures:
        if failure is not None:
            raise failure


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="minigraph")


if hasattr(os, "register_at_fork"):
    # a forked child has the pools of its parent, but not their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
