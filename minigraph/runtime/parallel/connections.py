"""ConnectedGroup: the ranks are processes that torchrun or Paddle's launcher has started, which MPI does not connect.

    exchange:  each rank gives its pieces to rank 0  ->  rank 0 gives each rank those that are for it

The connections are those of Python's multiprocessing, which begin with a proof that both ends have one key. Bytes and
JSON travel over them, never objects. On GPUs that is little: NCCL moves gradients. On CPUs all bytes pass rank 0, so
MPI is faster there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.groups import Group, Pieces, RankError, seen_as

from .meeting import (
    ENDED,
    MeetingPoint,
    Who,
    head_of,
    multiprocessing_connection,
    reach,
    say,
    wait_for_all,
    why,
)
from .threads import TIMEOUT

LOOK = 1.0  # seconds between two looks at who is missing
GRACE = 5.0  # seconds beyond the timeout for which a rank waits for rank 0's word on who is missing


class Given(NamedTuple):
    """What a rank gives in an exchange: the number of each rank's part, and the parts."""

    label: str
    to: list[int]
    parts: list[np.ndarray]

    def for_rank(self, rank: int) -> np.ndarray:
        return self.parts[self.to[rank]]


class ConnectedGroup(Group):
    """The processes that meet at one address.

    timeout   seconds for which a rank waits for another
    """

    def __init__(self, meeting: MeetingPoint, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.problem: RankError | None = None
        self._stirred = time.monotonic()  # when something last came or went
        self.ends: dict[int, Any] = {}  # connections by the rank behind them: rank 0 has all, others have its own
        who = Who(rank, size, timeout, self._stir)
        meet = reach if rank else wait_for_all
        self.ends = self._guarded(lambda: meet(meeting, who), f"the meeting at {meeting}")

    def exchange(self, pieces: Pieces, combine: Callable[[list[np.ndarray]], Any], label: str) -> Any:
        """Bytes of arrays in C order; what comes has this rank's shape, or is flat where it cannot."""
        own = pieces[self.rank]
        parts = {id(piece): np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces}
        numbers = {key: i for i, key in enumerate(parts)}
        mine = Given(label, [numbers[id(piece)] for piece in pieces], list(parts.values()))
        came = self._guarded(lambda: self._serve(mine) if self.rank == 0 else self._ask(mine), label)
        return combine([seen_as(x, own) for x in came])

    def leave(self) -> None:
        """Let the others see that this rank is gone."""
        for connection in self.ends.values():
            connection.close()

    def end(self, code: int = 1) -> None:
        """End this process at once, also where its GPU waits for another rank; the others see it."""
        os._exit(code)

    def _serve(self, mine: Given) -> list[np.ndarray]:
        """Rank 0: what all ranks give to it, once each has what the others give."""
        given = {0: mine, **self._collected(mine.label)}
        other = next((r for r in given if given[r].label != mine.label), None)
        if other is not None:
            raise self._failed(
                [other], f"rank 0 calls {mine.label}, rank {other} calls {given[other].label}",
                "all ranks run the same collectives in one order",
            )  # fmt: skip
        for rank in self.ends:
            try:
                self._send(rank, Given("", [*range(self.size)], [given[r].for_rank(rank) for r in range(self.size)]))
            except OSError as problem:
                raise self._failed([rank], f"rank {rank} ended in {mine.label}{why(problem)}", ENDED) from None
        return [given[r].for_rank(0) for r in range(self.size)]

    def _collected(self, label: str) -> dict[int, Given]:
        """What each other rank gives; those that have come are told while one is missing."""
        ranks, given = {id(c): r for r, c in self.ends.items()}, dict[int, Given]()
        due = time.monotonic() + self.timeout
        while len(given) < len(self.ends):
            missing = [r for r in self.ends if r not in given]
            ready = multiprocessing_connection().wait([self.ends[r] for r in missing], LOOK)
            for connection in ready:
                rank = ranks[id(connection)]
                try:
                    given[rank] = self._received(rank)
                except (EOFError, OSError, ValueError, KeyError, TypeError) as problem:
                    raise self._failed([rank], f"rank {rank} ended before {label}{why(problem)}", ENDED) from None
            if not ready and time.monotonic() > due:
                named = ", ".join(f"rank {r}" for r in missing)
                raise self._failed(
                    missing, f"{named} did not come to {label} within {self.timeout:g} s",
                    "it died, hangs, or is slower than that",
                )  # fmt: skip
            for rank in given if not ready else ():
                say(self.ends[rank], {"kind": "wait"})
        return given

    def _failed(self, ranks: Sequence[int], fact: str, hint: str) -> RankError:
        """The error of a rank, which all others get, too."""
        for rank in self.ends:
            say(self.ends[rank], {"kind": "fail", "ranks": [*ranks], "fact": fact, "hint": hint})
        return RankError(ranks, fact, hint)

    def _ask(self, mine: Given) -> list[np.ndarray]:
        """Another rank: what all ranks give to it, by way of rank 0."""
        try:
            self._send(0, mine)
            return self._received(0).parts
        except (EOFError, OSError, ValueError, KeyError, TypeError) as problem:
            raise RankError([0], f"rank 0 ended before {mine.label}{why(problem)}", ENDED) from None

    def _send(self, rank: int, given: Given) -> None:
        head = {"kind": "pieces", "label": given.label, "to": given.to, "sizes": [p.nbytes for p in given.parts]}
        try:
            self.ends[rank].send_bytes(json.dumps(head).encode())
            for part in given.parts:
                self.ends[rank].send_bytes(part.data)
                self._stirred = time.monotonic()
        except OSError:
            if not self._hears(rank):
                raise

    def _hears(self, rank: int) -> bool:
        """Whether the other end has left a word before it went."""
        try:
            return self.rank != 0 and self.ends[rank].poll(0)
        except OSError:
            return False

    def _stir(self) -> None:
        self._stirred = time.monotonic()

    def _received(self, rank: int) -> Given:
        """What a rank gives; a RankError where it says that another one is gone."""
        end = self.ends[rank]
        while True:
            head = head_of(end)
            self._stir()
            if head["kind"] == "fail":
                raise RankError([int(r) for r in head["ranks"]], str(head["fact"]), str(head["hint"]))
            if head["kind"] == "pieces":
                break
        parts = []
        for size in head["sizes"]:
            parts.append(np.frombuffer(end.recv_bytes(size), np.uint8))
            self._stirred = time.monotonic()
        return Given(str(head["label"]), [int(number) for number in head["to"]], parts)

    def _guarded(self, work: Callable[[], Any], label: str) -> Any:
        """What `work` returns, which may block for ever: it runs in a thread that nobody has to wait for."""
        if self.problem is not None:
            raise self.problem
        found: list[Any] = []
        done = threading.Event()
        self._stirred = time.monotonic()

        def run() -> None:
            try:
                found.append(work())
            except BaseException as problem:
                found.append(problem)
            done.set()

        threading.Thread(target=run, daemon=True, name="minigraph exchange").start()
        while not done.wait(LOOK):
            if time.monotonic() > self._stirred + self.timeout + GRACE:
                whom = [0] if self.rank else sorted(self.ends)
                found.append(RankError(whom, f"{label}: nothing came for {self.timeout + GRACE:g} s", ENDED))
                break
        if isinstance(found[0], RankError):
            self.problem = found[0]
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]
