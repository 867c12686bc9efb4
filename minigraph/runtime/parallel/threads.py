"""ThreadGroup: the ranks are threads of this process, which meet at a barrier.

    exchange:  put down the pieces -> all are there -> combine what lies for this rank -> all are through
    texts:     put down the text -> all are there
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minigraph.kernels.groups import Group, Pieces, RankError

TIMEOUT = 60.0  # seconds for which a rank waits for another


class Barrier:
    """Where threads wait until all have come; threading's may keep its lock where Ctrl-C comes at a bad time.

    _gates  locks at which those wait that have come
    """

    def __init__(self, size: int) -> None:
        self.size, self.broken = size, False
        self._lock, self._gates = threading.Lock(), list[Any]()

    def wait(self, timeout: float) -> None:
        """Return when all have come; a BrokenBarrierError after so many seconds, or when somebody calls `abort`."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            self._gates.append(gate)
            if len(self._gates) == self.size and not self.broken:
                self._open()
        if self.broken or not gate.acquire(timeout=timeout) or self.broken:
            self.abort()
            raise threading.BrokenBarrierError

    def abort(self) -> None:
        """Nobody waits any longer, now and later."""
        self.broken = True
        with self._lock:
            self._open()

    def _open(self) -> None:
        while self._gates:
            with suppress(RuntimeError):  # an interrupt came before it was taken from the list
                self._gates[-1].release()
            self._gates.pop()


class Meeting:
    """Where the ranks of one process meet.

    tables  what each rank has put down: its call, its pieces; two that take turns, so that who goes on to the next
            call overwrites nothing that another one still reads
    came    how often each rank has come
    failed  (rank, error) of the one that failed first, not because of another one where there is such
    scopes  in which the ranks run
    """

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        self.size, self.timeout = size, timeout
        self.barrier = Barrier(size)
        self.tables: list[list[tuple[str, Any]]] = [[("", ())] * size for _ in range(2)]
        self.came = [0] * size
        self.failed: tuple[int, BaseException] | None = None
        self.scopes: Sequence[Any] = ()
        self._lock = threading.Lock()

    def ranks(self) -> list[ThreadGroup]:
        """One group for each rank."""
        return [ThreadGroup(self, rank) for rank in range(self.size)]

    def fail(self, rank: int, problem: BaseException) -> None:
        """A rank will not come any more: nobody waits for it."""
        with self._lock:
            if self.failed is None or isinstance(self.failed[1], RankError):
                self.failed = rank, problem
        self.barrier.abort()

    def wait(self, rank: int, label: str) -> None:
        """Return when all ranks have come, also where one that has come fails before this one wakes up."""
        self.came[rank] += 1
        try:
            self.barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            if min(self.came) < self.came[rank]:
                raise self._why(rank, label) from None

    def _why(self, rank: int, label: str) -> RankError:
        """The error for a rank that waited for nothing."""
        if self.failed is not None:
            failed, problem = self.failed
            if isinstance(problem, RankError):  # about another one
                return RankError(problem.ranks, f"rank {rank} cannot go on with {label}: {problem.fact}", problem.hint)
            return RankError([failed], f"rank {rank} cannot go on with {label}: rank {failed} failed: {problem}")
        missing = [r for r, number in enumerate(self.came) if number < self.came[rank]]
        named = ", ".join(f"rank {r}" for r in missing) or "another rank"
        return RankError(
            missing, f"{named} did not come to {label} within {self.timeout:g} s",
            "it hangs, or it is slower than that: see what it does",
        )  # fmt: skip


class ThreadGroup(Group):
    """The group as one of its threads sees it."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size, self._calls = meeting, rank, meeting.size, 0

    @property
    def scopes(self) -> Sequence[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.meeting.scopes

    def exchange(self, pieces: Pieces, combine: Callable[[list[np.ndarray]], Any], label: str) -> Any:
        """Pieces are read where they lie; a rank goes on when all others have read its own."""
        made = combine([given[self.rank] for given in self._put_down(pieces, label)])
        self.meeting.wait(self.rank, label)
        return made

    def texts(self, text: str) -> list[str]:
        """As in Group; a text never changes, so nobody waits until all have read it."""
        return self._put_down(text, "texts")

    def _put_down(self, given: Any, label: str) -> list[Any]:
        """What all ranks give to this call, once all have come to it."""
        self._calls += 1
        table = self.meeting.tables[self._calls % 2]
        table[self.rank] = label, given
        self.meeting.wait(self.rank, label)
        _check_same(self.rank, [label for label, _ in table])
        return [given for _, given in table]


def _check_same(rank: int, labels: Sequence[str]) -> None:
    """All ranks have come to the same call."""
    other = next((r for r, label in enumerate(labels) if label != labels[0]), None)
    if other is not None:
        shown = other if rank == 0 else rank if labels[rank] != labels[0] else other
        raise RankError(
            [shown], f"rank 0 calls {labels[0]}, rank {shown} calls {labels[shown]}",
            "all ranks call the same collectives, on arrays of one shape and type",
        )  # fmt: skip
