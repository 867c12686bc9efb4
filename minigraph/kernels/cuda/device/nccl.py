"""NCCL between the GPUs of a group: a communicator for each rank, and what watches over it. Needs GPUs.

The ranks' processes or threads know each other already (groups.py): rank 0 tells the others NCCL's number of the new
communicator. From then on only NCCL moves data.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl

from minigraph.errors import PlaceError, require
from minigraph.kernels.groups import Group, RankError, present
from minigraph.types import bfloat16

TYPES = {np.dtype(name): getattr(nccl, f"NCCL_{name.upper()}") for name in (
    "int8", "uint8", "int32", "int64", "float16", "float32", "float64",
)}  # fmt: skip
TYPES[bfloat16] = 9  # ncclBfloat16, which not every cupy names
MOVES = ("broadcast", "all_gather")  # of these any type is so many bytes
LOOKS = 0.2  # seconds between two looks at what runs


class Communicator:
    """One rank's end of NCCL's communicator.

    timeout   seconds that a step may take
    """

    def __init__(self, group: Group, index: int, timeout: float = 60.0) -> None:
        given = nccl.get_unique_id() if group.rank == 0 else bytes(128)
        kind, *number = map(int, group.broadcast(np.array([isinstance(given, bytes), *given], np.int64)))
        number = bytes(number) if kind else tuple(number)  # a tuple before cupy 14
        _check_devices(group, index)
        self.rank, self.timeout = group.rank, timeout
        self.ends = nccl.NcclCommunicator(group.size, number, group.rank)
        self.begun: tuple[float, Any] = 0.0, None  # when the latest run was handed over, the event at its end
        self.ended: Any = None  # the latest event that was seen
        self.problem: str | None = None
        threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True, name="minigraph nccl").start()

    def arguments(
        self, kind: str, destination: int, source: int, sizes: tuple[int, int], dtype: Any, root: int
    ) -> tuple[int, ...]:  # fmt: skip
        """What NCCL's function takes, but for the stream."""
        out, x = sizes
        count = out if kind == "reduce_scatter" else x
        if kind in MOVES and dtype not in TYPES:
            count, dtype = count * dtype.itemsize, np.dtype("uint8")
        if kind == "broadcast":
            return source, destination, count, TYPES[dtype], root
        if kind == "reduce":
            return source, destination, count, TYPES[dtype], nccl.NCCL_SUM, root
        if kind == "all_gather":
            return source, destination, count, TYPES[dtype]
        return source, destination, count, TYPES[dtype], nccl.NCCL_SUM

    def run(self, kind: str, given: tuple[int, ...], stream: int) -> None:
        """Hand a collective to a stream, or put it into the graph that is captured there."""
        self.check()
        getattr(self.ends, FUNCTIONS[kind])(*given, stream)

    def together(self, runs: Sequence[Callable[[], None]]) -> None:
        """Hand over several collectives as one group, which NCCL begins at its end."""
        nccl.groupStart()
        try:
            for run in runs:
                run()
        finally:
            nccl.groupEnd()

    def handed_over(self, stream: int) -> None:
        """A run was given to a stream: it must be done within the timeout."""
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, stream)
        self.begun = time.monotonic(), event  # seen at the next look: waking the watcher would cost each step more

    def check(self) -> None:
        """A RankError where the communicator was given up."""
        if self.problem is not None:
            raise RankError((), self.problem, "look at the other ranks; start all of them again from a checkpoint")

    def look(self) -> bool:
        """Look at what runs, and give up the communicator where it failed or hangs; whether something still runs."""
        since, event = self.begun
        if event is self.ended or self.problem is not None:
            return False
        try:
            self.ends.check_async_error()
        except nccl.NcclError as problem:
            self._give_up(f"NCCL error {problem.status} on rank {self.rank}: another rank is gone")
            return False
        if event.done:
            self.ended = event
        elif time.monotonic() - since > self.timeout:
            self._give_up(f"rank {self.rank} waits for another one in a collective for {self.timeout:g} s")
        return event is not self.ended and self.problem is None

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.ends.abort()


FUNCTIONS = {
    "all_reduce": "allReduce", "reduce": "reduce", "broadcast": "broadcast", "all_gather": "allGather",
    "reduce_scatter": "reduceScatter",
}  # fmt: skip


def _check_devices(group: Group, index: int) -> None:
    """Each rank has a GPU of its own: NCCL would wait for ever."""
    own = cupy.cuda.runtime.getDeviceProperties(index)["uuid"].hex()
    ids = group.texts(own)
    first = ids.index(ids[group.rank])
    require(
        first == group.rank, f"ranks {first} and {group.rank} have one GPU", PlaceError,
        "give each process of a host a GPU of its own: CUDAPlace(local rank)",
    )  # fmt: skip


def _watch(weak: Any) -> None:
    """Look at a communicator again and again, until it is gone."""
    while True:
        time.sleep(LOOKS)
        ranks = weak()
        if ranks is None or ranks.problem is not None:
            return
        ranks.look()
        del ranks


_known: weakref.WeakKeyDictionary[Group, dict[int, Communicator]] = weakref.WeakKeyDictionary()
_one_looks = threading.Lock()


def communicator(index: int) -> Communicator:
    """That of the present group for GPU `index`, made by all ranks when the first collective is bound."""
    group = present()
    with _one_looks:
        known = _known.setdefault(group, {})
    if index not in known:
        known[index] = Communicator(group, index)
    return known[index]
