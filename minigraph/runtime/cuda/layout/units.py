"""Units: what each recorded call reads and writes, and what else follows from which buffers calls touch.

Calls of plans for other sizes mostly touch buffers in the same way: then all of this is known (Structure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.kernels.cuda.record.moved import taken
from minigraph.runtime.cuda.guards import Told, check_guards, guards, tell_guards, told_guards
from minigraph.runtime.cuda.recording import Recorded
from minigraph.runtime.cuda.staging import Staging

from .order import Unit

BlocksOf = Callable[[Buffer], Sequence[Buffer]]  # see Binder.blocks
Split = tuple[tuple[int, ...], tuple[int, ...]]  # see Touched
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
    recorded: Recorded, once: frozenset[int], constants: Collection[int], staging: Staging, known: Structures
) -> tuple[Structure, dict[int, Buffer]]:  # fmt: skip
    """What follows from which buffers the calls touch, and these by their numbers; guards are told, too.

    once       calls that do not belong to a run;  constants: ids of the buffers that they write before
    known      those of plans of the same program for other sizes
    """
    binder, outline = recorded.binder, recorded.outline
    if binder.tables or binder.arenas:
        check_guards(recorded)
        told = told_guards(recorded)
        tell_guards(recorded, told)
        made = _units(recorded, constants)
        return Structure(made.units, told), made.blocks
    if outline is None:
        return _of_touched(recorded, once, constants, [b for b, _ in staging.fields], known)
    results = any(b.size for b, _ in recorded.values.results)
    key = (
        recorded.schedule.lineage, recorded.patterns, tuple(binder.wrong), recorded.last, results, staging.held, once,
        len(constants),
    )  # fmt: skip
    there, buffers = outline.structures.get(key), [*recorded.values.buffers, *chain.from_iterable(binder.scratches)]
    if there is None:
        structure, blocks = _of_touched(recorded, once, constants, [b for b, _ in staging.fields], known)
        places = {id(b): place for place, b in enumerate(buffers)}
        if places.keys() >= {id(b) for b in blocks.values()}:
            if len(outline.structures) >= STRUCTURES_KEPT:
                outline.structures.clear()
            outline.structures[key] = structure, taken([places[id(b)] for b in blocks.values()])
        return structure, blocks
    structure, take = there
    tell_guards(recorded, structure.told)
    return structure, dict(enumerate(take(buffers)))


def _of_touched(
    recorded: Recorded, once: Collection[int], constants: Collection[int], staged: Iterable[Buffer], known: Structures
) -> tuple[Structure, dict[int, Buffer]]:  # fmt: skip
    """As `structure_of`, by the buffers that the calls touch; `staged` are those that travel in one copy."""
    binder = recorded.binder
    owners_of, calls, values = recorded.repeats.owners_of, binder.calls, recorded.values
    touched = [owners_of(call) for call in calls]
    by_id = {id(b): b for own in touched for b in own}
    numbers = {key: number for number, key in enumerate(by_id)}

    def named(buffers: Iterable[Buffer]) -> tuple[int, ...]:
        return tuple([
            numbers.setdefault(id(b if b.owner is None else owner(b)), len(numbers)) for b in buffers
        ])  # fmt: skip

    key = (
        recorded.schedule.lineage, tuple([numbers[id(b)] for own in touched for b in own]), tuple(map(len, touched)),
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
    binder, accesses = recorded.binder, _Accesses(recorded)
    calls, fault, agreed, nothing = binder.calls, binder.fault, recorded.agreed, frozenset[int]()
    numbers = dict.fromkeys({id(fault), *constants}, -1)  # every kernel may report; who is first does not matter
    blocks: dict[int, Buffer] = {}
    units: list[Unit] = []
    ordered = nothing  # the latest call that keeps its order among others
    reporters, waited = nothing, list[int]()  # guards wait for reporters before them, these for guards
    for position, span in enumerate((*recorded.spans, recorded.rest)):
        own = guards(recorded, position)
        for at in span:
            call, after, given = calls[at], nothing, []
            touched, (read, written) = accesses.of(position, at)
            if at in own:
                after = reporters
                waited.append(at)
            elif fault in touched:
                after = frozenset(waited) | reporters if at in agreed else frozenset(waited)
                reporters = reporters | {at}
            if call.ordered:
                after, ordered = after | ordered, frozenset([at])
            for b in touched:
                number = numbers.get(id(b))
                if number is None:
                    number = numbers[id(b)] = len(blocks)
                    blocks[number] = b
                given.append(number)
            reads, writes = set(map(given.__getitem__, read)), set(map(given.__getitem__, written))
            reads.discard(-1)
            writes.discard(-1)
            units.append(Unit(reads, writes, call.on_host, after, call.ordered))
    return Units(units, blocks)


class _Accesses:
    """What calls read and write: of calls that are copies of one, the same."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.blocks_of = recorded, recorded.binder.blocks()
        self.own_by = _Own(recorded, self.blocks_of)
        self.tables = {id(t.buffer): t.words.buffers for t in recorded.binder.tables}
        self.read_only = -1, set[int]()  # that of a step: _read_only

    def of(self, position: int, at: int) -> tuple[Sequence[Buffer], Split]:
        """The blocks that call `at`, of step `position`, touches, each once; places among them: read, written."""
        binder, repeats = self.recorded.binder, self.recorded.repeats
        copied = repeats.copied(binder.calls[at]) if not binder.arenas else None
        if copied is not None and copied[1].split is not None:
            return copied[0], copied[1].split
        call = binder.calls[at]
        touched = repeats.touched_by(call)
        if self.tables and (read := {id(owner(b)) for b in touched} & self.tables.keys()):
            touched = [*touched, *(b for t in read for b in self.tables[t])]
        if binder.arenas:
            given = {id(block): (block, id(owner(b))) for b in touched for block in self.blocks_of(b)}
        else:
            given = {(key := id(root)): (root, key) for root in map(owner, touched)}
        unchanged = self._unchanged(position, at)
        kept = [key in unchanged or root in unchanged for key, (_, root) in given.items()]
        split = tuple(i for i, one in enumerate(kept) if one), tuple(i for i, one in enumerate(kept) if not one)
        if copied is not None:
            copied[1].split = split
        return [b for b, _ in given.values()], split

    def _unchanged(self, position: int, at: int) -> Collection[int]:
        """Ids of what call `at` of a step may read and does not write, nor its step."""
        recorded, call = self.recorded, self.recorded.binder.calls[at]
        if self.read_only[0] != position:
            found = _read_only(recorded, position, self.own_by)
            found.update(self.tables)
            self.read_only = position, found
        if at in recorded.stores:  # what its step reads of the Scope's arrays is written here
            return self.read_only[1] - recorded.binder.outside
        return self.read_only[1].union(map(id, call.reads)) if call.reads else self.read_only[1]


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
