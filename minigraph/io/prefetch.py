"""Work of threads ahead of who asks for it: samples that are read, batches that are put together.

NumPy and files release Python's lock, so that threads are of use; an error in one is raised where its result is asked
for. A generator that is left before its end stops its threads.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

END = object()


def copied(batch: Any) -> Any:
    """A batch with arrays of its own: who made it may fill the same ones anew while it waits."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if type(batch) is dict:
        return {key: copied(part) for key, part in batch.items()}
    return type(batch)(map(copied, batch)) if type(batch) in (list, tuple) else batch


def mapped(
    function: Callable[[Any], Any], values: Iterable[Any], threads: int, ahead: int,
    begin: Callable[[], None] | None = None, timeout: float | None = None,
) -> Iterator[Any]:  # fmt: skip
    """function(value) of each, in order, computed by `threads` threads up to `ahead` values ahead.

    begin    called once in each thread before its first value
    timeout  seconds after which a result that is not there is a TimeoutError; None waits
    """
    waiting: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(threads, "minigraph-io", initializer=begin or (lambda: None))
    try:
        for value in values:
            waiting.append(pool.submit(function, value))
            if len(waiting) >= max(ahead, 1):
                yield waiting.popleft().result(timeout)
        while waiting:
            yield waiting.popleft().result(timeout)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a thread that hangs does not hold up who leaves


def prefetched(source: Callable[[], Iterable[Any]], ahead: int) -> Iterator[Any]:
    """The values of source(), which a thread reads up to `ahead` of them before they are asked for."""
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
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
    finally:
        left.set()
        room.release()
