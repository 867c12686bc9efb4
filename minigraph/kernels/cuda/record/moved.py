"""Calls that were recorded, with other buffers: for a trial on scratch memory, or for another operator like theirs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from .binder import Binder
from .buffer import Buffer, ConstantTable, owner, root_and_offset
from .call import Call, every_call

ANYWHERE = 1 << 40  # an address for questions that depend on its alignment only


def owners(calls: Iterable[Call]) -> list[Buffer]:
    """The buffers whose memory the calls touch, each once, but for constants."""
    return [root for root in _roots(calls) if not isinstance(root, ConstantTable)]


def constants(calls: Iterable[Call]) -> list[ConstantTable]:
    """The constants that the calls read, which keep their content wherever calls are moved."""
    return [root for root in _roots(calls) if isinstance(root, ConstantTable)]


def _roots(calls: Iterable[Call]) -> list[Buffer]:
    return list({id(root): root for call in calls for root in map(owner, call.buffers())}.values())


def unplaced(call: Any) -> Any:
    """The call at made-up addresses, where every owner lies as well as any: enough to ask what would run."""
    return call.moved({id(b): Buffer(b.shape, b.dtype, ANYWHERE) for b in owners([call])})


class Recording(NamedTuple):
    """The calls of one operator, each with the owners of what it touches; what was given, scratch, what was noted.

    fault   the record of faults, of which a guard has no more than its address
    wrong   what it would report, had it elements: no call of its reports; None where it never does
    """

    calls: list[tuple[Call, Sequence[Buffer]]]
    given: list[Buffer]
    scratch: list[Buffer]
    notes: list[str]
    fault: Buffer
    wrong: str | None = None


Earlier = dict[int, tuple[Any, Recording]]
"""What operators recorded in the latest plan of their program that has it, by their step."""


class GivenBuffers(NamedTuple):
    """What a bind function is given, and what it can tell of that.

    facts     all but sizes;  sizes: where each buffer begins in the memory that it shows, its shape, its steps
    roots     the buffers that own the memory, each once
    """

    buffers: list[Buffer]
    facts: tuple[Hashable, ...]
    sizes: tuple[int, ...]
    roots: list[Buffer]


def given_in(slots: Iterable[Any], outside: Collection[int]) -> GivenBuffers:
    """What stands in the slots of an operator; `outside` are ids of what a Scope owns."""
    buffers: list[Buffer] = []
    facts: list[Hashable] = []
    sizes: list[int] = []
    numbers: dict[int, int] = {}
    roots: list[Buffer] = []
    for slot in slots:
        if slot is None:
            facts.append(None)
        elif type(slot) is list:
            facts.append(len(slot))
            buffers += slot
        else:
            facts.append(-1)
            buffers.append(slot)
    for b in buffers:
        steps, shape = b.steps, b.shape
        root, offset = (b, 0) if b.owner is None else root_and_offset(b)
        own = id(root)
        number = numbers.get(own)
        if number is None:
            number = numbers[own] = len(numbers)
            roots.append(root)
        itself = number if root is b else numbers.setdefault(id(b), len(numbers))
        facts.append((number, itself, len(shape), steps is None, b.dtype, b.alignment, root.ptr, own in outside))
        sizes.append(offset)
        sizes += shape
        if steps is not None:
            sizes += steps
    return GivenBuffers(buffers, tuple(facts), tuple(sizes), roots)


class Key:
    """All that a bind function can tell of an operator, and what else its calls depend on (`what`)."""

    __slots__ = ("_hash", "_parts", "what")

    def __init__(self, what: tuple[Hashable, ...], given: GivenBuffers) -> None:
        self.what, self._parts = what, (what, given.facts, given.sizes)
        self._hash = hash((what[0], given.sizes))  # of data types it would take long

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._parts == other._parts


class Repeats:
    """Calls of operators like one that was bound before are copied: layers of one shape are bound once.

    A bind function sees types, attributes and how buffers lie in each other, not where they lie. Bound by itself is
    what uses more of an operator: the number that keys its random numbers or names it in a fault, tables and
    arenas of addresses, work of the host.

    earlier   of plans for other sizes of the feeds: an operator that none of them reaches (the update) is bound once
    """

    def __init__(self, binder: Binder, earlier: Earlier | None = None) -> None:
        self.binder, self.earlier = binder, {} if earlier is None else earlier
        self.known: dict[Key, Recording] = {}
        self._touched: dict[int, tuple[Call, Sequence[Buffer]]] = {}  # by id of the call, which lives as long

    def keep(self, key: Key, given: list[Buffer], calls: list[Call], notes: list[str]) -> None:
        """Remember what an operator recorded, if that is all there is to it."""
        if self.binder.managed or self.binder.paged or not all(c.repeatable for c in every_call(calls)):
            return
        scratch = list(self.binder.scratches[-1])
        shared = [] if self.binder.step in self.binder.wrong else [self.binder.fault]  # a guard's, which has no number
        touched: list[tuple[Call, Sequence[Buffer]]] = [(call, _roots([call])) for call in calls]
        if {id(b) for b in (*given, *scratch, *shared)}.issuperset([id(b) for _, roots in touched for b in roots]):
            wrong = self.binder.wrong.get(self.binder.step)
            own = Recording(touched, given, scratch, notes, self.binder.fault, wrong)
            self.known[key], self.earlier[self.binder.step] = own, (key, own)
            self._touched.update((id(call), (call, roots)) for call, roots in touched)

    def remember(
        self, key: Key, given: list[Buffer], filled: list[tuple[Call, Sequence[Buffer]]], calls: Sequence[Call],
        notes: list[str],
    ) -> None:  # fmt: skip
        """As `keep`, for calls of a template, `filled`, if they are those that run."""
        if [id(call) for call, _ in filled] == [id(call) for call in calls]:
            self._touched.update((id(pair[0]), pair) for pair in filled)
            if self.binder.step not in self.binder.wrong:
                self.known[key] = Recording(filled, given, list(self.binder.scratches[-1]), notes, self.binder.fault)

    def again(self, key: Key, given: list[Buffer]) -> list[Call] | None:
        """The calls for an operator like one that is known; None where none is."""
        known = self._earlier(key) or self.known.get(key)
        if known is None:
            return None
        self.known[key], self.earlier[self.binder.step] = known, (key, known)
        places = {id(old): new for old, new in zip(known.given, given, strict=True)}
        places[id(known.fault)] = self.binder.fault
        places |= {id(old): self.binder.scratch(old.shape, old.dtype) for old in known.scratch}
        for text in known.notes:
            self.binder.note(text)
        if known.wrong is not None:
            self.binder.wrong[self.binder.step] = known.wrong
        copies = []
        for call, touched in known.calls:
            there = [places[id(b)] for b in touched]  # before `places` gets what shows them
            copies.append(copy := call.moved(places, self.binder.step))
            self._touched[id(copy)] = copy, there
        return copies

    def _earlier(self, key: Key) -> Recording | None:
        """What this operator recorded in an earlier plan, if a bind function cannot tell them apart."""
        known_key, known = self.earlier.get(self.binder.step, (None, None))
        return known if known_key == key else None

    def touched_by(self, call: Call) -> Sequence[Buffer]:
        """The buffers that a call is given, or those whose memory they show."""
        known = self._touched.get(id(call))
        return known[1] if known is not None else call.buffers()
