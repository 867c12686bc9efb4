"""Work of threads ahead of who asks for it: samples that are read, batches that are put together.

NumPy and files release Python's lock, so that threads are of use; an error in one is raised where its result is asked
for. A generator that is left before its end stops its threads.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from minigraph.errors import ProgramError

END = object()


def check_process(own: int) -> None:
    """Refuse to wait in a forked child for the threads of its parent, the process `own`."""
    if os.getpid() != own:
        raise ProgramError(f"the threads of this iterator are in process {own}, from which this one was forked",
                           hint="begin another one here: iter(loader)")  # fmt: skip


def mapped(
    function: Callable[[Any], Any], values: Iterable[Any], threads: int, ahead: int,
    begin: Callable[[], None] | None = None, timeout: float | None = None,
) -> Iterator[Any]:  # fmt: skip
    """function(value) of each, in order, computed by `threads` threads up to `ahead` values ahead.

    begin    called once in each thread before its first value
    timeout  seconds after which a result that is not there is a TimeoutError; None waits
    """
    waiting, own = deque[Future[Any]](), os.getpid()
    pool = ThreadPoolExecutor(threads, "minigraph-io", initializer=begin or (lambda: None))
    try:
        for value in values:
            waiting.append(pool.submit(function, value))
            if len(waiting) >= max(ahead, 1):
                yield waiting.popleft().result(timeout)
                check_process(own)
        while waiting:
            yield waiting.popleft().result(timeout)
            check_process(own)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a thread that hangs does not hold up who leaves


def prefetched(source: Callable[[], Iterable[Any]], ahead: int) -> Iterator[Any]:
    """The values of source(), which a thread reads up to `ahead` of them before they are asked for."""
    ready, own = queue.SimpleQueue[Any](), os.getpid()
    room, left = threading.Semaphore(ahead), threading.Event()

    def put(item: Any) -> bool:
        """Whether anybody still wants it, once there is room."""
        room.acquire()
        if not left.is_set():
            ready.put(item)
        return not left.is_set()

    def read() -> None:
        try:
            for value in source():
                if not put((value, None)):
                    return
            put((END, None))
        except BaseException as problem:
            put((END, problem))

    threading.Thread(target=read, name="minigraph-io", daemon=True).start()
    try:
        while True:
            value, problem = ready.get()
            room.release()
            if problem is not None:
                raise problem
            if value is END:
                return
            yield value
            check_process(own)
    finally:
        left.set()
        room.release()
