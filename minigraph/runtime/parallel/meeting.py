"""Meeting: ranks that a launcher has started find each other at an address, where rank 0 waits.

    rank 0 listens  <-  the others: proof of the key, "rank 2 of 4, version"  ->  welcome, or what is wrong

The connections are those of Python's multiprocessing; what passes is bytes and JSON, never objects.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minigraph.errors import ProgramError
from minigraph.kernels.groups import RankError
from minigraph.runtime.version import VERSION

LONGEST = 1 << 20  # bytes of a message that says what follows
RETRY = 0.1  # seconds between two tries to reach rank 0
ENDED = "see what that rank said; start all of them again from a checkpoint"
UNREACHED = "MASTER_ADDR and MASTER_PORT are those of rank 0 on every host, and its port is open to them"
Ends = dict[int, Any]  # connections by the rank behind them


class MeetingPoint(NamedTuple):
    """Where rank 0 waits for the others.

    key   what every process of the group knows and no other
    """

    host: str
    port: int
    key: bytes

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Who(NamedTuple):
    """A rank that comes to a meeting, the seconds that it waits, and a function that says that it still moves."""

    rank: int
    size: int
    timeout: float
    stir: Callable[[], None]


def wait_for_all(meeting: MeetingPoint, who: Who) -> Ends:
    """Rank 0: connections to all others."""
    try:
        listener = multiprocessing_connection().Listener(
            (meeting.host, meeting.port), backlog=who.size, authkey=meeting.key
        )
    except OSError as problem:
        raise ProgramError(
            f"rank 0 cannot wait for the others at {meeting}: {problem.strerror or problem}",
            hint="another process has this port, or the address is another host's: set MASTER_ADDR and MASTER_PORT",
        ) from None
    ends: Ends = {}
    refused: list[str] = []
    ready = threading.Event()
    threading.Thread(target=_admit, args=(listener, who.size, ends, refused, ready), daemon=True).start()
    due = time.monotonic() + who.timeout
    while not ready.wait(RETRY) and time.monotonic() < due:
        who.stir()
    if refused:
        raise _failed(ends, [], refused[0], "start all ranks by one launcher, from one installation")
    missing = [r for r in range(1, who.size) if r not in ends]
    if missing:
        named = ", ".join(f"rank {r}" for r in missing)
        raise _failed(ends, missing, f"{named} did not come to {meeting} within {who.timeout:g} s", UNREACHED)
    for end in ends.values():
        say(end, {"kind": "welcome"})
    return ends


def _admit(listener: Any, size: int, ends: Ends, refused: list[str], ready: threading.Event) -> None:
    """Take in the ranks that know the key, until all are there or one is not what it should be."""
    strangers = multiprocessing_connection().AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError
    while len(ends) < size - 1 and not refused:
        try:
            end = unheld(listener.accept())
            head = head_of(end)
            rank, its_size, version = int(head["rank"]), int(head["size"]), str(head["version"])
        except strangers:
            continue
        if version != str(VERSION):
            refused.append(f"minigraph of rank 0 is {VERSION}, that of rank {rank} {version}")
        elif its_size != size or not 0 < rank < size:
            refused.append(f"a process says that it is rank {rank} of {its_size}, rank 0 knows of {size} ranks")
        elif rank in ends:
            refused.append(f"two processes say that they are rank {rank}")
        if refused:
            say(end, {"kind": "fail", "ranks": [rank], "fact": refused[0], "hint": ""})
        else:
            ends[rank] = end
    listener.close()
    ready.set()


def _failed(ends: Ends, ranks: Sequence[int], fact: str, hint: str) -> RankError:
    """An error of rank 0, which all others get, too."""
    for end in ends.values():
        say(end, {"kind": "fail", "ranks": [*ranks], "fact": fact, "hint": hint})
    return RankError(ranks, fact, hint)


def reach(meeting: MeetingPoint, who: Who) -> Ends:
    """Another rank: the connection to rank 0, which may begin later."""
    connections, due, last, end = multiprocessing_connection(), time.monotonic() + who.timeout, "no answer", None
    while end is None:
        if time.monotonic() > due:
            fact = f"rank {who.rank} cannot reach rank 0 at {meeting} within {who.timeout:g} s: {last}"
            raise RankError([0], fact, UNREACHED)
        who.stir()
        try:
            end = unheld(connections.Client((meeting.host, meeting.port), authkey=meeting.key))
        except connections.AuthenticationError:
            raise ProgramError(
                f"the process at {meeting} has another key than rank {who.rank}",
                hint="it belongs to another run: give each run a port of its own, or all ranks one MINIGRAPH_KEY",
            ) from None
        except (OSError, EOFError) as problem:
            last = str(problem) or type(problem).__name__
            time.sleep(RETRY)
    say(end, {"rank": who.rank, "size": who.size, "version": str(VERSION)})
    try:
        head = head_of(end)
    except (EOFError, OSError, ValueError) as problem:
        raise RankError([0], f"rank 0 at {meeting} ended before all had come{why(problem)}", ENDED) from None
    if head.get("kind") == "fail":
        raise RankError([int(r) for r in head["ranks"]], str(head["fact"]), str(head["hint"]) or None)
    return {0: end}


def unheld(end: Any) -> Any:
    """A connection that sends what is written at once: TCP holds a small message back until the one before it is
    acknowledged, which the other end puts off for 40 ms while it has nothing to say."""
    import socket

    with socket.socket(fileno=os.dup(end.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def say(end: Any, head: dict[str, Any]) -> None:
    """Send a message; who is gone is seen in the next exchange."""
    try:
        end.send_bytes(json.dumps(head).encode())
    except OSError:
        return


def head_of(end: Any) -> dict[str, Any]:
    """A message that says what follows."""
    head = json.loads(end.recv_bytes(LONGEST))
    if not isinstance(head, dict):
        raise ValueError("no message of a rank")
    return head


def why(problem: BaseException) -> str:
    """The text of an error in brackets, if it has one."""
    return f" ({problem})" if str(problem) else ""


def multiprocessing_connection() -> Any:
    """Python's multiprocessing.connection: Client, Listener, wait, and the error of one who has another key."""
    from multiprocessing import connection

    return connection
