"""MPIGroup: the ranks are processes under mpirun, and MPI moves the bytes.

    exchange:  how many bytes, of which call -> all ranks;  then the bytes;  both without blocking

A rank that waits looks at a clock. When its time is up it asks the others where they are: who does not answer is dead
or hangs.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.errors import PlaceError, ProgramError, require
from minigraph.kernels.groups import Group, Pieces, RankError, seen_as

from .threads import TIMEOUT

ROLL_CALL, SAID = 7001, 200  # tag of messages about who is where, their bytes
ANSWERS = 3.0  # seconds for which a rank waits for these
SPIN, NAP = 200, 5e-5  # looks at a request before naps, seconds of a nap


class MPIGroup(Group):
    """The processes of MPI's world."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.mpi = _mpi()
        self.world = self.mpi.COMM_WORLD.Dup()
        self.rank, self.size, self.timeout = self.world.rank, self.world.size, timeout
        self.came = 0
        self._sent: list[Any] = []

    def exchange(self, pieces: Pieces, combine: Callable[[list[np.ndarray]], Any], label: str) -> Any:
        """Bytes of arrays in C order, first how many; what comes has this rank's shape, or is flat where it cannot."""
        self.came += 1
        own = pieces[self.rank]
        given, places = _packed(pieces)
        sizes = np.array([piece.nbytes for piece in pieces], np.int64)
        call = int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "little")
        sent = np.stack([sizes, np.full(self.size, call, np.int64)], 1)
        came = np.empty_like(sent)
        self._wait(self.world.Ialltoall(sent, came), label)
        if (came[:, 1] != call).any():
            raise self._roll_call(label, "does another collective than")
        counts = came[:, 0]
        ends = np.cumsum(counts)
        received = np.empty(int(ends[-1]), np.uint8)
        byte = self.mpi.BYTE
        self._wait(
            self.world.Ialltoallv([given, (sizes, places), byte], [received, (counts, ends - counts), byte]), label
        )
        return combine([
            seen_as(received[end - count : end], own) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)
        ])  # fmt: skip

    def end(self, code: int = 1) -> None:
        """End all processes of the group."""
        self.world.Abort(code)

    def _wait(self, request: Any, label: str) -> None:
        due, looks = time.monotonic() + self.timeout, 0
        while not request.Test():
            looks += 1
            if looks > SPIN:
                time.sleep(NAP)
                if time.monotonic() > due:
                    raise self._roll_call(label, "did not come to")

    def _roll_call(self, label: str, fact: str) -> RankError:
        """Ask all ranks where they are, and name those that are not here."""
        here = f"{self.came} {label}"
        message = np.frombuffer(here.encode()[:SAID].ljust(SAID), np.uint8)
        others = [r for r in range(self.size) if r != self.rank]
        self._sent = [self.world.Isend(message, dest=r, tag=ROLL_CALL) for r in others]  # some may never be fetched
        answers: dict[int, str] = {}
        due = time.monotonic() + ANSWERS
        while len(answers) < len(others) and time.monotonic() < due:
            for r in others:
                if r not in answers and self.world.Iprobe(source=r, tag=ROLL_CALL):
                    came = np.empty(SAID, np.uint8)
                    self.world.Recv(came, source=r, tag=ROLL_CALL)
                    answers[r] = came.tobytes().decode().rstrip()
            time.sleep(NAP)
        missing = [r for r in others if r not in answers]
        elsewhere = [r for r in others if r in answers and answers[r] != here[:SAID].rstrip()]
        named = missing or elsewhere or others
        said = "; ".join(f"rank {r} is at {answers[r].partition(' ')[2]}" for r in elsewhere)
        shown = ", ".join(f"rank {r}" for r in named)
        waited = f" within {self.timeout:g} s" if fact.startswith("did not") else ""
        return RankError(
            named, f"{shown} {fact} {label} of rank {self.rank}{waited}{f': {said}' if said else ''}",
            "it died, hangs, or is slower than that" if missing else "all ranks run the same collectives in one order",
        )  # fmt: skip


def end_all_on_error(group: Any) -> None:
    """Let an error that nobody catches end all processes: they would wait for this one, or MPI at its end for them."""
    shown = sys.excepthook

    def show_and_end(kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        shown(kind, problem, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        group.end()

    sys.excepthook = show_and_end


def _mpi() -> Any:
    """mpi4py's MPI, initialised."""
    try:
        from mpi4py import MPI
    except ImportError as problem:
        raise PlaceError(
            f"ranks of a CPU talk through MPI, and mpi4py cannot be imported: {problem}",
            hint="pip install 'minigraph[mpi]'",
        ) from None
    return MPI


def _packed(pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of all pieces, and where each begins; what goes to several ranks lies there once."""
    starts: dict[int, int] = {}
    parts: list[np.ndarray] = []
    end = 0
    for piece in pieces:
        if id(piece) not in starts:
            starts[id(piece)] = end
            parts.append(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
            end += piece.nbytes
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined, np.array([starts[id(piece)] for piece in pieces], np.int64)


def check_world(group: MPIGroup, rank: int, size: int) -> None:
    """MPI has the ranks that the launcher said."""
    require(
        (group.rank, group.size) == (rank, size), f"the launcher says rank {rank} of {size}, MPI rank {group.rank} of"
        f" {group.size}", ProgramError, "mpirun and mpi4py belong to one MPI: both from `pip install 'minigraph[mpi]'`",
    )  # fmt: skip
