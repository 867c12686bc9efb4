"""Placement: in which order recorded calls run, and where each block of temporary memory lies.

    calls -> units: what each reads and writes -> an order that needs little memory -> offsets in one arena
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.one_piece import rounded
from minigraph.runtime.memory import Life, apart, layout, most_live

from .graph_streams import OnStream, assign_streams
from .guards import guards
from .order import Unit, as_late_as_possible, dependencies, greedy, lives, most_needed
from .recording import Recorded

BlocksOf = Callable[[Buffer], Sequence[Buffer]]  # see Binder.blocks


class Placement(NamedTuple):
    """The order of the calls and the places of temporary values.

    order     positions of calls in the order in which they run
    blocks    (buffer, numbers of the calls in this order during which it is needed) of what lies in the arena;
              `live_bytes` at most at once
    offsets   (buffer, offset) of the same; a run does not keep its content
    """

    order: list[int]
    blocks: list[tuple[Buffer, Life]]
    live_bytes: int
    offsets: list[tuple[Buffer, int]]
    arena_bytes: int


class Units(NamedTuple):
    """What each call reads and writes, in numbers of buffers, and the buffers by these numbers."""

    units: list[Unit]
    blocks: dict[int, Buffer]


def units_of(recorded: Recorded, constants: Collection[int]) -> Units:
    """A Unit for each call; `constants` are ids of buffers that are written before the first run."""
    binder = recorded.binder
    numbers: dict[int, int] = {}
    blocks: dict[int, Buffer] = {}
    ignored = {id(binder.fault), *constants}  # every kernel may report; who is first does not matter
    tables = {id(t.buffer): t.words.buffers for t in binder.tables}
    units: list[Unit] = []
    blocks_of = binder.blocks()
    ordered = frozenset[int]()  # the latest call that keeps its order among others
    reporters, waited = frozenset[int](), list[int]()  # guards wait for reporters before them, these for guards
    for position, span in enumerate((*recorded.spans, recorded.rest)):
        read_only = _read_only(recorded, position, blocks_of)
        read_only.update(tables)
        own = guards(recorded, position)
        for at in span:
            call = binder.calls[at]
            touched = [*recorded.repeats.touched_by(call)]
            touched += [b for t in {id(owner(b)) for b in touched} & tables.keys() for b in tables[t]]
            given = {id(block): (block, id(owner(b))) for b in touched for block in blocks_of(b)}
            reads, writes, after = set[int](), set[int](), frozenset[int]()
            if at in own:
                after = reporters
                waited.append(at)
            elif id(binder.fault) in given:
                after, reporters = frozenset(waited), reporters | {at}
            if call.ordered:
                after, ordered = after | ordered, frozenset([at])
            unchanged = read_only
            if at in recorded.stores:  # what its step reads of the Scope's arrays is written here
                unchanged = read_only - binder.outside
            elif call.reads:
                unchanged = read_only.union(map(id, call.reads))
            for key, (b, root) in given.items():
                if key not in ignored:
                    number = numbers.setdefault(key, len(numbers))
                    blocks[number] = b
                    (reads if key in unchanged or root in unchanged else writes).add(number)
            units.append(Unit(reads, writes, call.on_host, after, call.ordered))
    return Units(units, blocks)


def _read_only(recorded: Recorded, position: int, blocks_of: BlocksOf) -> set[int]:
    """Ids of the buffers that own what a step, or the end, reads and does not update; of members of arenas, too."""
    buffers, steps = recorded.values.buffers, recorded.schedule.steps
    if position == len(steps):
        return {id(b) for b, _ in recorded.values.results}
    step = steps[position]
    read, written = (
        {id(b) for i in some for b in (owner(buffers[i]), *blocks_of(buffers[i]))} for some in (step.read, step.written)
    )
    read.add(id(recorded.binder.counter))
    return read - written


def place(
    recorded: Recorded, made: Units, elsewhere: Collection[int], absent: Collection[int], reuse: bool, room: int = 0
) -> Placement:
    """The order of calls, and offsets in the arena of all but the buffers with ids in `elsewhere`.

    absent   calls that do not belong to a run;  reuse: blocks whose lives do not overlap share memory
    room     bytes that are there anyway: what fits into them as it was recorded needs no better order
    """
    units, schedule, buffers = made.units, recorded.schedule, recorded.values.buffers
    tables = {id(t.buffer) for t in recorded.binder.tables}
    own = {n: b for n, b in made.blocks.items() if id(b) not in elsewhere and id(b) not in tables and b.ptr is None}
    blocks_of = recorded.binder.blocks()
    fed, fetched = (
        {id(b) for i in some for b in blocks_of(buffers[i])} for some in (schedule.feeds.values(), schedule.fetched)
    )
    given, kept = ({n for n, b in own.items() if id(b) in ids} for ids in (fed, fetched))
    order = [i for i in range(len(units)) if i not in absent]

    def placed(order: list[int]) -> Placement:
        return _placed(order, _in_arenas(_blocks(order, units, own, given, kept, reuse)), buffers, elsewhere, room)

    if reuse:
        if room and (fits := placed(order)).arena_bytes <= room:
            return fits
        order = _frugal(order, units, {n: rounded(b.nbytes) for n, b in own.items()}, given, kept)
    return placed(order)


def _placed(
    order: list[int], blocks: list[tuple[Buffer, Life]], buffers: Sequence[Buffer], elsewhere: Collection[int],
    room: int,
) -> Placement:  # fmt: skip
    """The blocks laid out, and what no call touches."""
    known = {id(b) for b, _ in blocks}
    for b in buffers:  # what no call touches
        if b.owner is None and id(b) not in elsewhere and id(b) not in known:
            known.add(id(b))
            blocks.append((b, Life(b.nbytes, -1, -1)))
    offsets, nbytes = layout(apart([life for _, life in blocks]), room)
    placed = [(b, offset) for (b, _), offset in zip(blocks, offsets, strict=True)]
    return Placement(order, blocks, most_live([life for _, life in blocks]), placed, nbytes)


def _frugal(
    order: list[int], units: Sequence[Unit], sizes: Mapping[int, int], given: Collection[int], kept: Collection[int]
) -> list[int]:
    """Of a few orders the one that needs least memory: as recorded, what frees memory early, what takes it late."""
    before, present = dependencies(units), {*order}
    peak = partial(most_needed, units=units, sizes=sizes, given=given, kept=kept)
    early = [i for i in greedy(units, before, sizes, given, kept) if i in present]
    least, order = min((peak(order), order), (peak(early), early), key=itemgetter(0))
    postponed = as_late_as_possible(order, units, before, sizes, kept)
    return postponed if peak(postponed) < least else order


def _blocks(
    order: Sequence[int], units: Sequence[Unit], own: Mapping[int, Buffer], given: Collection[int],
    kept: Collection[int], reuse: bool,
) -> list[tuple[Buffer, Life]]:  # fmt: skip
    """Each block with the calls in order during which it is needed, all of them without `reuse`.

    So are those that only calls outside of the order touch: some constants need room while they are computed.
    """
    end, touched_in = len(order), lives(order, units)
    blocks = []
    for n, b in own.items():
        first, last = touched_in.get(n, (-1, end))
        first, last = (-1 if n in given else first), (end if n in kept else last)
        blocks.append((b, Life(b.nbytes, first, last) if reuse else Life(b.nbytes, -1, end)))
    return blocks


def _in_arenas(blocks: list[tuple[Buffer, Life]]) -> list[tuple[Buffer, Life]]:
    """The same with each arena as one block, in the place of its members."""
    lives: dict[int, tuple[Buffer, list[Life]]] = {}
    for b, life in blocks:
        lives.setdefault(id(owner(b)), (owner(b), []))[1].append(life)
    return [
        (b, Life(b.nbytes, min(life.first for life in own), max(life.last for life in own)))
        for b, own in lives.values()
    ]  # fmt: skip


def streams_of(order: Sequence[int], made: Units, offsets: Sequence[tuple[Buffer, int]]) -> list[OnStream]:
    """The calls in order with their streams of the captured graph, and what they wait for."""
    start = {id(b): offset for b, offset in offsets if b.nbytes}
    lies = {n: root_and_offset(b) for n, b in made.blocks.items()}
    places = {
        n: (start[id(root)] + at, start[id(root)] + at + made.blocks[n].nbytes)
        for n, (root, at) in lies.items() if id(root) in start
    }  # fmt: skip
    return assign_streams(order, made.units, places, {n: b.nbytes for n, b in made.blocks.items()})
