"""Placement: in which order recorded calls run, and where each block of temporary memory lies.

    calls -> units: what each reads and writes -> an order that needs little memory -> offsets in one arena

A plan whose calls touch blocks as those of a larger plan do lies where that one lies (ArenaLayout): each of its blocks
fits into the place of its like. So it needs no search of its own, takes no more memory, and waits for no other calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple
from weakref import ref

from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.one_piece import rounded
from minigraph.runtime.cuda.recording import Recorded
from minigraph.runtime.memory import Life, apart, layout

from .graph_streams import OnStream, assign_streams
from .order import (
    Touched,
    Unit,
    as_late_as_possible,
    dependencies,
    greedy,
    lives,
    mattering,
    most_needed,
)
from .units import Structure, Units

KEPT = 8  # layouts of one program: its calls touch blocks in a few ways


class Asked(NamedTuple):
    """What a layout follows from besides sizes.

    own           numbers of the blocks that lie in the arena;  loose: how many lie there that no call touches
    inside        for each of `own` the piece of memory in which it lies, and its offset there: blocks that were brought
                  side by side share a piece
    given, kept   those that hold something before the first call, and after the last
    absent        calls that do not belong to a run;  reuse: blocks whose lives do not overlap share memory
    """

    units: Sequence[Unit]
    own: Sequence[int]
    inside: Sequence[tuple[int, int]]
    loose: int
    given: Collection[int]
    kept: Collection[int]
    absent: Collection[int]
    reuse: bool


@dataclass(frozen=True, eq=False)
class ArenaLayout:
    """The order of calls, and the place of each piece of the arena.

    sizes     bytes of the blocks of `asked.own`
    pieces    bytes of the pieces in which they lie, then of the loose ones; as `lives` and `offsets`
    outside   bytes of the blocks that lie elsewhere, by number
    """

    asked: Asked
    sizes: Sequence[int]
    pieces: Sequence[int]
    outside: Mapping[int, int]
    order: list[int]
    lives: list[Life]
    offsets: list[int]

    @cached_property
    def streams(self) -> list[OnStream]:
        """The calls in order with their streams of the captured graph, and what they wait for."""
        own = dict(zip(self.asked.own, self.sizes, strict=True))
        starts = {n: self.offsets[p] + at for n, (p, at) in zip(self.asked.own, self.asked.inside, strict=True)}
        places = {n: (start, start + own[n]) for n, start in starts.items() if own[n]}
        return assign_streams(self.order, self.asked.units, places, {**self.outside, **own})

    def holds(self, asked: Asked, sizes: Sequence[int], pieces: Sequence[int]) -> bool:
        """Whether blocks of these sizes, which calls touch in the same way, fit into the places of these."""
        given, there = (*sizes, *pieces), (*self.sizes, *self.pieces)
        return len(given) == len(there) and all(map(int.__le__, given, there)) and self.asked == asked


@dataclass
class Layouts:
    """Layouts of plans of one program that are there, the latest one last."""

    _known: list[ref[ArenaLayout]] = field(default_factory=list)

    @property
    def known(self) -> list[ArenaLayout]:
        """Those of which a plan is left: memory for them is there."""
        return [layout for one in self._known if (layout := one()) is not None]

    def fitting(self, asked: Asked, sizes: Sequence[int], pieces: Sequence[int]) -> ArenaLayout | None:
        """One that holds blocks of these sizes."""
        return next((one for one in reversed(self.known) if one.holds(asked, sizes, pieces)), None)

    def keep(self, layout: ArenaLayout) -> None:
        """Remember a layout in the place of those that it stands for."""
        known = self.known
        if layout not in known:
            left = [one for one in known if not layout.holds(one.asked, one.sizes, one.pieces)]
            self._known = [ref(one) for one in (*left, layout)][-KEPT:]


class Placement(NamedTuple):
    """The order of the calls and the places of temporary values.

    order     positions of calls in the order in which they run
    offsets   (buffer, offset) of what lies in the arena; a run does not keep its content
    layout    the ArenaLayout that says so, which may be that of a larger plan
    """

    order: list[int]
    offsets: list[tuple[Buffer, int]]
    arena_bytes: int
    layout: ArenaLayout


def place(
    recorded: Recorded, structure: Structure, units: Units, elsewhere: Collection[int], absent: Collection[int],
    reuse: bool, room: int = 0, layouts: Layouts | None = None,
) -> Placement:  # fmt: skip
    """The order of calls, and offsets in the arena of all but the buffers with ids in `elsewhere`.

    absent   calls that do not belong to a run;  reuse: blocks whose lives do not overlap share memory
    room     bytes that are there anyway: what fits into them as it was recorded needs no better order
    layouts  of plans of the same program for other sizes: what fits into one of these lies there
    """
    buffers, key = recorded.values.buffers, (absent, tuple(recorded.binder.joined), reuse)
    known = structure.asked.get(key)
    if known is None:
        known = structure.asked[key] = _asked(recorded, units, elsewhere, absent, reuse)
    asked, loose = known
    blocks = [units.blocks[n] for n in asked.own]
    roots = list({id(root): root for root in map(owner, blocks)}.values()) + [buffers[i] for i in loose]
    pieces = [b.nbytes for b in roots]
    pairs = zip(asked.inside, blocks, strict=True)
    sizes = [pieces[piece] if roots[piece] is b else b.nbytes for (piece, _), b in pairs]
    there = layouts.fitting(asked, sizes, pieces) if layouts is not None else None
    if there is None:
        own = {*asked.own}
        outside = {n: b.nbytes for n, b in units.blocks.items() if n not in own}
        there = _laid_out(asked, sizes, pieces, outside, room)
    offsets = list(zip(roots, there.offsets, strict=True))
    end = max([at + rounded(nbytes) for nbytes, at in zip(pieces, there.offsets, strict=True)], default=0)
    return Placement(there.order, offsets, end, there)


def _asked(
    recorded: Recorded, made: Units, elsewhere: Collection[int], absent: Collection[int], reuse: bool
) -> tuple[Asked, list[int]]:  # fmt: skip
    """What the layout follows from besides sizes, and a value for each piece of the arena that no call touches."""
    schedule, buffers = recorded.schedule, recorded.values.buffers
    tables = {id(t.buffer) for t in recorded.binder.tables}
    own = {n: b for n, b in made.blocks.items() if id(b) not in elsewhere and id(b) not in tables and b.ptr is None}
    blocks_of = recorded.binder.blocks()
    fed, fetched = (
        {id(b) for i in some for b in blocks_of(buffers[i])} for some in (schedule.feeds.values(), schedule.fetched)
    )
    given, kept = ({n for n, b in own.items() if id(b) in ids} for ids in (fed, fetched))
    found: dict[int, int] = {}  # numbers of pieces by the ids of what owns them
    inside = [(found.setdefault(id(root), len(found)), at) for root, at in map(root_and_offset, own.values())]
    loose = _untouched(buffers, {*elsewhere, *found})
    return Asked(made.units, list(own), inside, len(loose), given, kept, absent, reuse), loose


def _untouched(buffers: Sequence[Buffer], known: set[int]) -> list[int]:
    """A value for each buffer that no call touches, but for buffers with ids in `known`."""
    return list({id(b): i for i, b in enumerate(buffers) if b.owner is None and id(b) not in known}.values())


def _laid_out(
    asked: Asked, sizes: Sequence[int], pieces: Sequence[int], outside: Mapping[int, int], room: int
) -> ArenaLayout:
    """An ArenaLayout of its own for blocks of these sizes."""
    own = dict(zip(asked.own, map(rounded, sizes), strict=True))
    touched = mattering(asked.units, own)
    order = [i for i in range(len(asked.units)) if i not in asked.absent]

    def placed(order: list[int]) -> tuple[ArenaLayout, int]:
        lives = [Life(nbytes, *span) for nbytes, span in zip(pieces, _spans(order, asked, touched), strict=True)]
        offsets, nbytes = layout(apart(lives), room)
        return ArenaLayout(asked, sizes, pieces, outside, order, lives, offsets), nbytes

    if asked.reuse:
        if room and (fits := placed(order))[1] <= room:
            return fits[0]
        order = _frugal(order, asked, touched, own)
    return placed(order)[0]


def _frugal(order: list[int], asked: Asked, touched: Touched, sizes: Mapping[int, int]) -> list[int]:
    """Of a few orders the one that needs least memory: as recorded, what frees memory early, what takes it late."""
    before, given, kept = dependencies(asked.units), asked.given, asked.kept
    needed, present = lives(order, touched), {*order}
    peak = partial(most_needed, end=len(order), sizes=sizes, given=given, kept=kept)
    early = [i for i in greedy(touched, before, sizes, given, kept) if i in present]
    if early != order and peak(needed) > peak(sooner := lives(early, touched)):
        order, needed = early, sooner
    postponed = as_late_as_possible(order, asked.units, needed, touched, before, sizes, kept)
    return postponed if postponed != order and peak(needed) > peak(lives(postponed, touched)) else order


def _spans(order: Sequence[int], asked: Asked, touched: Touched) -> list[tuple[int, int]]:
    """The first and the last call in order during which each piece is needed, all of them without `reuse`.

    So are those that only calls outside of the order touch: some constants need room while they are computed. What no
    call touches needs none.
    """
    end, touched_in, spans = len(order), lives(order, touched), dict[int, tuple[int, int]]()
    for n, (piece, _) in zip(asked.own, asked.inside, strict=True):
        first, last = touched_in.get(n, (-1, end)) if asked.reuse else (-1, end)
        first, last = (-1 if n in asked.given else first), (end if n in asked.kept else last)
        before = spans.get(piece)  # of a block in the same piece
        spans[piece] = (first, last) if before is None else (min(first, before[0]), max(last, before[1]))
    return [*spans.values(), *[(-1, -1)] * asked.loose]
