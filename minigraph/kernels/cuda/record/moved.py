"""Calls that were recorded, with other buffers: for a trial on scratch memory, or for another operator like theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from .binder import Binder
from .buffer import Buffer, ConstantTable, Words, owner, root_and_offset
from .call import Call, every_call, names_of

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


class Touched:
    """Which buffers a call and its copies touch, by their places among what their operator was given.

    take    gives those buffers of all that the operator has: what owns what it was given, scratch, the record of faults
    split   places among these of what the call reads, and of what it writes; None until somebody found them
    """

    __slots__ = ("split", "take")

    def __init__(self, places: Sequence[int]) -> None:
        self.take = taken(places)
        self.split: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def taken(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that takes what lies at these places of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def alike(a: Any, b: Any) -> bool:
    """Whether two calls, or values of their fields, are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Buffer):
        (root, offset), (other, begin) = root_and_offset(a), root_and_offset(b)
        facts = [(x.shape, x.dtype, x.steps, x.alignment) for x in (a, b)]
        return root is other and offset == begin and facts[0] == facts[1]
    if isinstance(a, Call):
        return all(alike(getattr(a, name), getattr(b, name)) for name in names_of(type(a)))
    if isinstance(a, Words):
        return alike(a.facts, b.facts)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(map(alike, a.values(), b.values()))
    return bool(a == b)


def pattern_of(
    calls: Iterable[tuple[Call, Sequence[int]]], places: Mapping[int, int], scratch: int, fault: Buffer
) -> str:  # fmt: skip
    """Which buffers each of an operator's calls touches, reads and looks at, as a text that is kept once.

    calls    each with the places of what it touches among what owns all that the operator has, as `places` has them
    scratch  how many buffers of its own the operator has
    """

    def place(b: Buffer) -> int:
        while id(b) not in places:  # its owner may lie in an arena by now
            assert b.owner is not None, f"{b} is nobody's"
            b = b.owner
        return places[id(b)]

    told = [
        (type(call).__module__, type(call).__qualname__, [*own], [*map(place, call.reads)], call.looks_at(fault))
        for call, own in calls
    ]  # fmt: skip
    return sys.intern(f"{scratch} {told}")


class Recording:
    """The calls of one operator, each with the owners of what it touches; what was given, scratch, what was noted.

    key     what copies of them are found by
    owners  of all that the calls touch: of what was given, scratch, the record of faults, of which a guard has no more
            than its address
    wrong   what it would report, had it elements: no call of its reports; None where it never does
    """

    def __init__(
        self, key: Key, calls: Sequence[tuple[Call, Sequence[Buffer]]], given: Sequence[Buffer],
        scratch: Sequence[Buffer], notes: list[str], fault: Buffer, wrong: str | None = None, pattern: str = "",
    ) -> None:  # fmt: skip
        self.key, self.calls, self.owners, self.scratch = key, calls, (*given, *scratch, fault), scratch
        self.notes, self.wrong, self._pattern = notes, wrong, pattern

    @cached_property
    def by_place(self) -> tuple[list[int], list[tuple[Call, Touched]]]:
        """The ids of the owners, and the calls with the places of those that they touch: what copies are made by."""
        ids = [id(b) for b in self.owners]
        places = {key: place for place, key in enumerate(ids)}
        return ids, [(call, Touched([places[id(b)] for b in own])) for call, own in self.calls]

    @property
    def pattern(self) -> str:
        """See pattern_of."""
        if not self._pattern:
            places = {id(b): place for place, b in enumerate(self.owners)}
            touched = [(call, [places[id(b)] for b in own]) for call, own in self.calls]
            self._pattern = pattern_of(touched, places, len(self.scratch), self.owners[-1])
        return self._pattern


Earlier = dict[int, Recording]
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
    numbers: dict[int, int] = {}  # of what owns memory
    first: dict[int, int] = {}
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
    for place, b in enumerate(buffers):
        steps, shape = b.steps, b.shape
        root, offset = (b, 0) if b.owner is None else root_and_offset(b)
        before = first.setdefault(id(b), place)
        if before < place:  # as what an update writes in place
            facts.append(before)
        else:
            own = id(root)
            number = numbers.get(own)
            if number is None:
                number = numbers[own] = len(numbers)
                roots.append(root)
            is_root = root is b
            facts.append((number, is_root, len(shape), steps is None, b.dtype, b.alignment, root.ptr, own in outside))
        sizes.append(offset)
        sizes += shape
        if steps is not None:
            sizes += steps
    return GivenBuffers(buffers, tuple(facts), tuple(sizes), roots)


class Key:
    """All that a bind function can tell of an operator, and what else its calls depend on (`what`)."""

    __slots__ = ("_parts", "sizes", "what")

    def __init__(self, what: tuple[Hashable, ...], given: GivenBuffers) -> None:
        self.what, self.sizes, self._parts = what, given.sizes, (what, given.facts, given.sizes)

    def __hash__(self) -> int:
        return hash((self.what[0], self.sizes))  # of data types it would take long

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
        self._touched: dict[int, tuple[Call, Sequence[Buffer], Touched | None]] = {}  # by id of the call
        self._late: list[tuple[tuple[Hashable, ...], GivenBuffers, dict[str, Any]]] = []  # not in `known` yet

    def keep(self, key: Key, given: list[Buffer], calls: list[Call], notes: list[str]) -> None:
        """Remember what an operator recorded, if that is all there is to it."""
        if self.binder.managed or self.binder.paged or not all(c.repeatable for c in every_call(calls)):
            return
        scratch = list(self.binder.scratches[-1])
        shared = [] if self.binder.step in self.binder.wrong else [self.binder.fault]  # a guard's, which has no number
        touched: list[tuple[Call, Sequence[Buffer]]] = [(call, _roots([call])) for call in calls]
        if {id(b) for b in (*given, *scratch, *shared)}.issuperset([id(b) for _, roots in touched for b in roots]):
            wrong = self.binder.wrong.get(self.binder.step)
            own = Recording(key, touched, given, scratch, notes, self.binder.fault, wrong)
            self.known[key] = self.earlier[self.binder.step] = own
            self._touched.update((id(call), (call, roots, None)) for call, roots in touched)

    def remember(
        self, what: tuple[Hashable, ...], given: GivenBuffers, filled: list[tuple[Call, Sequence[Buffer]]],
        calls: Sequence[Call], notes: list[str], pattern: str,
    ) -> bool:  # fmt: skip
        """As `keep`, for calls of a template, `filled`, if they are those that run."""
        if len(filled) != len(calls) or any(one is not call for (one, _), call in zip(filled, calls, strict=True)):
            return False
        for call, roots in filled:
            self._touched[id(call)] = call, roots, None
        if self.binder.step not in self.binder.wrong:
            facts = {"calls": filled, "scratch": self.binder.scratches[-1], "notes": notes, "pattern": pattern}
            self._late.append((what, given, facts))
        return True

    def _find(self, key: Key) -> Recording | None:
        """What an operator of this plan recorded that is like this one."""
        for what, given, facts in self._late:
            own = Key(what, given)
            self.known[own] = Recording(own, given=given.roots, fault=self.binder.fault, **facts)
        self._late.clear()
        return self.known.get(key)

    def again(self, key: Key, given: list[Buffer]) -> tuple[list[Call], str] | None:
        """The calls for an operator like one that is known, and its pattern; None where none is."""
        binder, step = self.binder, self.binder.step
        known = self.earlier.get(step)
        if known is None or known.key != key:
            known = self._find(key)
            if known is None:
                return None
            self.earlier[step] = known
        else:
            self.known[key] = known
        ids, calls = known.by_place
        owners = [*given, *[binder.scratch(old.shape, old.dtype) for old in known.scratch], binder.fault]
        places = dict(zip(ids, owners, strict=True))
        for text in known.notes:
            binder.note(text)
        if known.wrong is not None:
            binder.wrong[step] = known.wrong
        copies = []
        for call, touched in calls:
            copies.append(copy := call.moved(places, step))
            self._touched[id(copy)] = copy, touched.take(owners), touched
        return copies, known.pattern

    def touched_by(self, call: Call) -> Sequence[Buffer]:
        """The buffers that a call is given, or those whose memory they show."""
        known = self._touched.get(id(call))
        return known[1] if known is not None else call.buffers()

    def owners_of(self, call: Call) -> Sequence[Buffer]:
        """The buffers whose memory a call touches, while none of them became part of an arena."""
        known = self._touched.get(id(call))
        return known[1] if known is not None else [owner(b) for b in call.buffers()]

    def copied(self, call: Call) -> tuple[Sequence[Buffer], Touched] | None:
        """The owners of what a call touches that is a copy, and how they are found; None for other calls."""
        known = self._touched.get(id(call))
        return (known[1], known[2]) if known is not None and known[2] is not None else None
