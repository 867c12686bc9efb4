"""Calls that were recorded, with other buffers: for a trial on scratch memory, or for another operator like theirs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from .binder import Binder, Call, Choice, Copy, Fill, Foreign, Gemm, HostCall, Launch, every_call
from .buffer import Buffer, Constant, Words, owner, root_and_offset

FIELDS: dict[type, Any] = {kind: attrgetter(*kind.__slots__) for kind in (Gemm, Copy, Fill, Foreign, HostCall)}
MOVABLE = (Launch, Gemm, Copy, Fill)


def owners(calls: Iterable[Call]) -> list[Buffer]:
    """The buffers whose memory the calls touch, each once, but for constants."""
    return [root for root in _roots(calls) if not isinstance(root, Constant)]


def constants(calls: Iterable[Call]) -> list[Constant]:
    """The constants that the calls read, which keep their content wherever calls are moved."""
    return [root for root in _roots(calls) if isinstance(root, Constant)]


def _roots(calls: Iterable[Call]) -> list[Buffer]:
    return list({id(root): root for call in every_call(calls) for root in map(owner, _buffers(call))}.values())


def _buffers(call: Call) -> list[Buffer]:
    if isinstance(call, Launch):
        return [b for a in call.args for b in (a.buffers if isinstance(a, Words) else [a]) if isinstance(b, Buffer)]
    return [b for b in FIELDS[type(call)](call) if isinstance(b, Buffer)]


def moved(call: Any, places: dict[int, Buffer], step: int | None = None) -> Any:
    """The call with other buffers: `places` has one for the id of each of the owners, and gets those that show them.

    step   the operator whose call it becomes; that of `call` for None
    """
    if isinstance(call, Choice):
        variants = {name: [moved(c, places, step) for c in calls] for name, calls in call.variants.items()}
        return Choice(variants, call.step if step is None else step)
    if isinstance(call, Launch):
        args = tuple([_moved(a, places) if isinstance(a, (Buffer, Words)) else a for a in call.args])
        reads = tuple([_moved(b, places) for b in call.reads])
        return Launch(
            call.source, call.function, call.grid, call.block, args, call.shared, call.together, call.form, reads
        )
    return type(call)(*[_moved(x, places) if isinstance(x, Buffer) else x for x in FIELDS[type(call)](call)])


def _moved(value: Any, places: dict[int, Buffer]) -> Any:
    found = places.get(id(value))
    if found is not None or isinstance(value, Constant):
        return found or value
    if isinstance(value, Words):
        return value.elsewhere(partial(_moved, places=places))
    assert value.owner is not None, f"{value} has no place"
    found = places[id(value)] = Buffer(value.shape, value.dtype, alignment=value.alignment)
    found.owner, found.offset, found.steps = _moved(value.owner, places), value.offset, value.steps
    return found


class Recording(NamedTuple):
    """The calls of one operator; whose memory they touch, what it was given and its scratch; what was noted."""

    calls: list[Call]
    given: list[Buffer]
    scratch: list[Buffer]
    notes: list[str]


class Repeats:
    """Calls of operators like one that was bound before are copied: layers of one shape are bound once.

    A bind function sees types, attributes and how buffers lie in each other, not where they lie. Bound by itself is
    what uses more of an operator: the number that keys its random numbers or names it in a fault, tables and
    arenas of addresses, work of the host, graphs of other libraries.
    """

    def __init__(self, binder: Binder) -> None:
        self.binder = binder
        self.known: dict[Hashable, Recording] = {}

    def key(self, what: Hashable, slots: Sequence[Any]) -> tuple[Hashable, list[Buffer]]:
        """(what a bind function can tell of these slots, the owners of their memory)."""
        roots: dict[int, tuple[int, Buffer]] = {}

        def facts(slot: Any) -> Hashable:
            if isinstance(slot, list):
                return tuple(map(facts, slot))
            if slot is None:
                return None
            root, offset = root_and_offset(slot)
            number, _ = roots.setdefault(id(root), (len(roots), root))
            outside = id(root) in self.binder.outside
            layout = slot.shape, slot.steps, slot.dtype, slot.alignment
            return number, offset, layout, slot is root, root.ptr, outside

        return (what, *map(facts, slots)), [root for _, root in roots.values()]

    def keep(self, key: Hashable, given: list[Buffer], calls: list[Call], notes: list[str]) -> None:
        """Remember what an operator recorded, if that is all there is to it."""
        if self.binder.paged or not all(isinstance(c, MOVABLE) for c in every_call(calls)):
            return
        scratch = list(self.binder.scratches[-1])
        shared = [] if self.binder.step in self.binder.wrong else [self.binder.fault]  # a guard's, which has no number
        if {id(b) for b in (*given, *scratch, *shared)}.issuperset(map(id, _roots(calls))):
            self.known[key] = Recording(calls, given, scratch, notes)

    def again(self, key: Hashable, given: list[Buffer]) -> list[Call] | None:
        """The calls for an operator like one that is known; None where none is."""
        found = self.known.get(key)
        if found is None:
            return None
        places = {id(old): new for old, new in zip(found.given, given, strict=True)}
        places[id(self.binder.fault)] = self.binder.fault
        places |= {id(old): self.binder.scratch(old.shape, old.dtype) for old in found.scratch}
        for text in found.notes:
            self.binder.note(text)
        return [moved(call, places, self.binder.step) for call in found.calls]
