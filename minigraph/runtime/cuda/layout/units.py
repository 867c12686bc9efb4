"""Units: what each recorded call reads and writes, and what else follows from which buffers calls touch.

Calls of plans for other sizes mostly touch buffers in the same way: then all of this is known (Structure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.runtime.cuda.guards import Told, check_guards, guards, tell_guards, told_guards
from minigraph.runtime.cuda.recording import Recorded

from .order import Unit

BlocksOf = Callable[[Buffer], Sequence[Buffer]]  # see Binder.blocks
STRUCTURES_KEPT = 64  # of one program


class Units(NamedTuple):
    """What each call reads and writes, in numbers of buffers, and the buffers by these numbers."""

    units: list[Unit]
    blocks: dict[int, Buffer]


@dataclass(frozen=True)
class Structure:
    """What is the same for all plans whose calls touch buffers in the same way.

    units     a Unit for each call;  told: what guards are told
    asked     what their layouts follow from, by the calls that do not run or do the work of others: placement.py
    """

    units: list[Unit]
    told: Told
    asked: dict[Any, Any] = field(default_factory=dict)


Structures = dict[Any, Structure]  # by all that they follow from


def structure_of(
    recorded: Recorded, once: Collection[int], constants: Collection[int], staged: Iterable[Buffer], known: Structures
) -> tuple[Structure, dict[int, Buffer]]:  # fmt: skip
    """What follows from which buffers the calls touch, and these by their numbers; guards are told, too.

    once       calls that do not belong to a run;  constants: ids of the buffers that they write before
    staged     buffers that travel between host and GPU in one copy
    known      those of plans of the same program for other sizes
    """
    binder = recorded.binder
    if binder.tables or binder.arenas:
        check_guards(recorded)
        told = told_guards(recorded)
        tell_guards(recorded, told)
        made = _units(recorded, constants)
        return Structure(made.units, told), made.blocks
    touched_by, calls, values = recorded.repeats.touched_by, binder.calls, recorded.values
    roots = [[owner(b) for b in touched_by(call)] for call in calls]
    by_id = {id(b): b for own in roots for b in own}
    numbers = {key: number for number, key in enumerate(by_id)}

    def named(buffers: Iterable[Buffer]) -> tuple[int, ...]:
        return tuple([numbers.setdefault(id(owner(b)), len(numbers)) for b in buffers])

    key = (
        recorded.schedule.lineage, tuple([tuple([numbers[id(b)] for b in own]) for own in roots]),
        tuple(map(len, recorded.spans)), recorded.rest, recorded.stores, recorded.agreed, recorded.looking,
        recorded.last, tuple(binder.wrong), tuple(map(type, calls)),
        tuple([(i, named([b])) for i, call in enumerate(calls) for b in call.reads]),
        named(values.buffers), named(values.outside.values()), named([b for b, _ in values.results]),
        any(b.size for b, _ in values.results), named([binder.counter, binder.fault]), named(staged), once,
        frozenset([numbers[key] for key in constants if key in numbers]),
    )  # fmt: skip
    structure = known.get(key)
    if structure is None:
        check_guards(recorded)
        made = _units(recorded, constants)
        if len(known) >= STRUCTURES_KEPT:
            known.clear()
        structure, blocks = Structure(made.units, told_guards(recorded)), made.blocks
        known[key] = structure
    else:
        ignored = {id(binder.fault), *constants}
        blocks = dict(enumerate([b for key, b in by_id.items() if key not in ignored]))
    tell_guards(recorded, structure.told)
    return structure, blocks


def _units(recorded: Recorded, constants: Collection[int]) -> Units:
    """A Unit for each call; `constants` are ids of buffers that are written before the first run."""
    binder = recorded.binder
    numbers: dict[int, int] = {}
    blocks: dict[int, Buffer] = {}
    ignored = {id(binder.fault), *constants}  # every kernel may report; who is first does not matter
    tables = {id(t.buffer): t.words.buffers for t in binder.tables}
    units: list[Unit] = []
    touched_by, blocks_of, nothing = recorded.repeats.touched_by, binder.blocks(), frozenset[int]()
    own_by = _Own(recorded, blocks_of)
    ordered = frozenset[int]()  # the latest call that keeps its order among others
    reporters, waited = frozenset[int](), list[int]()  # guards wait for reporters before them, these for guards
    for position, span in enumerate((*recorded.spans, recorded.rest)):
        read_only = _read_only(recorded, position, own_by)
        read_only.update(tables)
        own = guards(recorded, position)
        for at in span:
            call = binder.calls[at]
            touched = touched_by(call)
            if tables and (read := {id(owner(b)) for b in touched} & tables.keys()):
                touched = [*touched, *(b for t in read for b in tables[t])]
            if binder.arenas:
                given = {id(block): (block, id(owner(b))) for b in touched for block in blocks_of(b)}
            else:
                given = {(key := id(root)): (root, key) for root in map(owner, touched)}
            reads: set[int] = set()  # an empty set[int]() takes ten times as long
            writes: set[int] = set()
            after = nothing
            if at in own:
                after = reporters
                waited.append(at)
            elif id(binder.fault) in given:
                after = frozenset(waited) | reporters if at in recorded.agreed else frozenset(waited)
                reporters = reporters | {at}
            if call.ordered:
                after, ordered = after | ordered, frozenset([at])
            unchanged = read_only
            if at in recorded.stores:  # what its step reads of the Scope's arrays is written here
                unchanged = read_only - binder.outside
            elif call.reads:
                unchanged = read_only.union(map(id, call.reads))
            for key, (b, root) in given.items():
                if key not in ignored:
                    number = numbers.get(key)
                    if number is None:
                        number = numbers[key] = len(numbers)
                        blocks[number] = b
                    (reads if key in unchanged or root in unchanged else writes).add(number)
            units.append(Unit(reads, writes, call.on_host, after, call.ordered))
    return Units(units, blocks)


class _Own:
    """Ids of the buffers that own values, and of their blocks."""

    def __init__(self, recorded: Recorded, blocks_of: BlocksOf) -> None:
        self.buffers, self.blocks_of = recorded.values.buffers, blocks_of
        self.known: dict[int, set[int]] | None = {} if recorded.binder.arenas else None  # else a block owns itself

    def of(self, values: Sequence[int]) -> set[int]:
        """Those of some values."""
        known, buffers = self.known, self.buffers
        if known is None:
            return {id(b if (b := buffers[i]).owner is None else owner(b)) for i in values}
        found: set[int] = set()
        for i in values:
            own = known.get(i)
            if own is None:
                buffer = buffers[i]
                own = known[i] = {id(owner(buffer)), *map(id, self.blocks_of(buffer))}
            found |= own
        return found


def _read_only(recorded: Recorded, position: int, own: _Own) -> set[int]:
    """Ids of the buffers that own what a step, or the end, reads and does not update; of members of arenas, too."""
    steps = recorded.schedule.steps
    if position == len(steps):
        return {id(b) for b, _ in recorded.values.results}
    step = steps[position]
    read = own.of(step.read)
    read.add(id(recorded.binder.counter))
    return read - own.of(step.written)
