"""Staging buffer: small feeds, the run counter and small results travel in one copy each way.

    | run counter | small feeds |  ->  GPU         | fault record | small results |  ->  host
    0                             sent                                          nbytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.one_piece import rounded

from .recording import Recorded
from .values import SMALL


@dataclass(frozen=True)
class Staging:
    """Where each of its fields lies: (buffer, offset). The host writes `sent` bytes and reads what lies behind them."""

    fields: list[tuple[Buffer, int]]
    sent: int
    nbytes: int


def staging_of(recorded: Recorded) -> Staging:
    """The staging buffer of a program; larger feeds and results, and what the Scope holds, travel by themselves."""
    binder, schedule, values = recorded.binder, recorded.schedule, recorded.values
    owned = {id(b) for b in values.outside.values()}

    def small(indices: Sequence[int]) -> list[Buffer]:
        own = [values.buffers[i] for i in indices]
        return [b for b in own if b.owner is None and id(b) not in owned and b.nbytes <= SMALL]

    fields: dict[int, tuple[Buffer, int]] = {}
    sent = end = 0
    for part in ([binder.counter, *small(list(schedule.feeds.values()))], [binder.fault, *small(schedule.fetched)]):
        sent = end
        for b in part:
            if id(b) not in fields:
                fields[id(b)] = b, end
                end += rounded(b.nbytes)
    return Staging(list(fields.values()), sent, end)
