"""Staging buffer: small feeds, the run counter and small results travel in one copy each way.

    | run counter | small feeds |  ->  GPU         | fault record | small results |  ->  host
    0                             sent                                          nbytes
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.one_piece import rounded

from .recording import Recorded
from .values import SMALL


@dataclass(frozen=True)
class Staging:
    """Where each of its fields lies: (buffer, offset). The host writes `sent` bytes and reads what lies behind them.

    held   for each value that is fed or fetched whether it travels there
    """

    fields: list[tuple[Buffer, int]]
    sent: int
    nbytes: int
    held: tuple[bool, ...]


def staging_of(recorded: Recorded) -> Staging:
    """The staging buffer of a program; larger feeds and results, and what the Scope holds, travel by themselves."""
    binder, schedule, values = recorded.binder, recorded.schedule, recorded.values
    owned = {id(b) for b in values.outside.values()}

    def small(b: Buffer) -> bool:
        return b.owner is None and id(b) not in owned and b.nbytes <= SMALL

    fed, fetched = ([values.buffers[i] for i in some] for some in (schedule.feeds.values(), schedule.fetched))
    held = tuple([small(b) for b in (*fed, *fetched)])
    fields: dict[int, tuple[Buffer, int]] = {}
    sent = end = 0
    ways = [binder.counter, *compress(fed, held)], [binder.fault, *compress(fetched, held[len(fed) :])]
    for part in ways:
        sent = end
        for b in part:
            if id(b) not in fields:
                fields[id(b)] = b, end
                end += rounded(b.nbytes)
    return Staging(list(fields.values()), sent, end, held)
