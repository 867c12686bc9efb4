"""Lanes: calls of one operator that may run beside each other inside a CUDA graph.

    dX = d @ W^T  and  dW = X^T @ d   read d, write different memory: a fork before, a join after both

Only calls of one step are paired. Memory is laid out by steps, so whatever they touch is theirs for the
whole step, and no life has to be extended. Products that fill the GPU alone gain nothing and stay in line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from .kernels.cuda.binder import Call, Copy, Device, Fill, Gemm, Launch
from .kernels.cuda.buffer import Buffer, Words

TILE = 128  # rows and columns of a product that one multiprocessor takes at a time, usually


class Segment(NamedTuple):
    """Positions of calls: those of `main` in order, beside those of `side` in order; nothing else meanwhile."""

    main: list[int]
    side: list[int]


class Range(NamedTuple):
    """Bytes of the memory that one Buffer owns."""

    root: int
    first: int
    end: int

    def meets(self, other: Range) -> bool:
        return self.root == other.root and self.first < other.end and other.first < self.end


class Access(NamedTuple):
    """What a call reads and writes; `anything` where that is not known."""

    reads: list[Range]
    writes: list[Range]
    anything: bool = False

    def conflicts(self, other: Access) -> bool:
        """Whether the order of both matters."""
        if self.anything or other.anything:
            return True
        return any(
            w.meets(r) for a, b in ((self, other), (other, self)) for w in a.writes for r in (*b.reads, *b.writes)
        )


def extent(buffer: Buffer) -> Range:
    """The bytes of a buffer, in terms of the one that owns them."""
    first, owner = 0, buffer
    while owner.owner is not None:
        first, owner = first + owner.offset, owner.owner
    return Range(id(owner), first, first + buffer.nbytes)


def access(call: Call, read_only: Collection[int], tables: Collection[int] = ()) -> Access:
    """`read_only` are the ids of the buffers that own what the operator reads and does not update.

    tables   ids of buffers that hold addresses: what a kernel with such an argument touches is not known here
    """
    if isinstance(call, Gemm):
        buffers = [b for b in (call.a, call.b, call.c, call.bias, call.aux, call.workspace) if b is not None]
    elif isinstance(call, Launch):
        words = [a for a in call.args if isinstance(a, Words)]
        buffers = [*(a for a in call.args if isinstance(a, Buffer)), *(b for w in words for b in w.buffers)]
        if any(extent(b).root in tables for b in buffers):
            return Access([], [], anything=True)
    elif isinstance(call, Copy):
        buffers = [call.destination, call.source]
    elif isinstance(call, Fill):
        buffers = [call.destination]
    else:
        return Access([], [], anything=True)
    ranges = [extent(b) for b in buffers]
    return Access([r for r in ranges if r.root in read_only], [r for r in ranges if r.root not in read_only])


def leaves_room(device: Device) -> Callable[[Any], bool]:
    """Which calls are products that occupy a part of the multiprocessors only."""

    def small(call: Any) -> bool:
        if not isinstance(call, Gemm):
            return False
        return -(-call.m // TILE) * -(-call.n // TILE) * call.batch < device.multiprocessors

    return small


def segments(
    calls: Sequence[Call], read_only: Collection[int], small: Callable[[Any], bool], tables: Collection[int] = ()
) -> Iterator[Segment]:
    """The calls of one step in an order and with pairs that compute the same as one after the other."""
    accesses = [access(c, read_only, tables) for c in calls]
    rest = list(range(len(calls)))
    while rest:
        before = _predecessors(rest, accesses)
        pair = next(
            ((i, j) for n, i in enumerate(rest) for j in rest[n + 1 :]
             if small(calls[i]) and small(calls[j]) and i not in before[j]), None
        )  # fmt: skip
        if pair is None:
            yield Segment(rest, [])
            return
        i, j = pair
        first = [c for c in rest if c < i or c in before[j]]
        if first:
            yield Segment(first, [])
        yield Segment([i], [j])
        rest = [c for c in rest if c not in (i, j) and c not in first]


def _predecessors(order: Sequence[int], accesses: Sequence[Access]) -> dict[int, set[int]]:
    """For each call all that must run before it."""
    before: dict[int, set[int]] = {}
    for n, j in enumerate(order):
        direct = {i for i in order[:n] if accesses[i].conflicts(accesses[j])}
        before[j] = direct.union(*(before[i] for i in direct))
    return before
