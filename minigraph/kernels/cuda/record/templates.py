"""Templates: what a bind function records for any sizes of which it asks the same.

    a miss   the function runs once more, on Symbols in the place of the sizes that change (symbolic.py)
    a hit    other sizes that meet the conditions get the calls with their own numbers; the function does not run

A template is kept only if it gives the calls that the function has recorded for the sizes that it was made for. What a
bind function does that a template cannot hold (tables, arenas, reports, calls of the host) is bound each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from .binder import Binder
from .buffer import Buffer, Words, owner
from .call import Call, every_call, names_of
from .calls import Choice, are_fixed
from .moved import GivenBuffers, alike, pattern_of, taken
from .symbolic import NO_SYMBOLS, Questions, Scalar, SizeSymbol, Trace, TraceStep, Values

FIXED = bool, int, float, str, bytes, type(None), np.generic, np.dtype  # values that hold no symbol
Pool = list[Any]
_Place = tuple[int, int]  # a part of a pool and a number in it
_VALUE, _SAME, _BUFFER, _MADE = range(4)  # the parts of a pool, in their order
Bind = Callable[[Binder, Sequence[Buffer]], None]  # records the calls for these buffers


class Unfit(Exception):
    """A template cannot hold this."""


class CallTemplate:
    """Calls of one operator with symbols for sizes.

    For other sizes there is a pool: the values of the trace, what is the same for all sizes, the buffers that the
    operator is given and what owns them, scratch, the record of faults. Then each thing that sizes or buffers reach,
    views, arguments, calls, is made of things that lie there before it, and lies behind them.

    pattern  which buffers the calls touch: pattern_of;  fixed: whether they are those that run
    """

    def __init__(self, trace: Trace, binder: Binder, given: Sequence[Buffer], owners: Sequence[Buffer]) -> None:
        """Of the calls that `binder` has, which are those of an operator that was given these buffers."""
        self.trace, scratch = trace, binder.scratches[-1]
        known = *given, *owners, *scratch, binder.fault
        self._places: dict[int, _Place] = {id(b): (_BUFFER, i) for i, b in enumerate(known)}
        roots = {id(owner(b)): i for i, b in enumerate(known)}
        self.same: list[Any] = []
        self._made: list[tuple[Callable[..., Any], list[_Place]]] = []
        shapes = [[self._place(n) for n in b.shape] for b in scratch]
        calls: list[_Place] = []
        touched: list[list[int]] = []
        for call in binder.calls:
            if not all(one.repeatable for one in call.leaves()):
                raise Unfit
            calls.append(self._place(call))
            own = dict.fromkeys(id(owner(b)) for b in call.buffers())
            if not roots.keys() >= own.keys():
                raise Unfit
            touched.append([roots[key] for key in own])
        self.notes = [trace.text(text) for _, text in binder.notes]
        self.wrong = trace.text(binder.wrong[binder.step]) if binder.step in binder.wrong else None
        self.fixed = are_fixed(binder.calls)
        self.answers = binder.answers if any(call.products() for call in every_call(binder.calls)) else None
        self.steps = list(trace.steps)
        starts = {_VALUE: 0, _SAME: trace.nodes, _BUFFER: trace.nodes + len(self.same)}
        starts[_MADE] = starts[_BUFFER] + len(known)

        def from_pool(places: Sequence[_Place]) -> Callable[[Pool], Sequence[Any]]:
            return taken([starts[kind] + number for kind, number in places])

        self.scratch = [(from_pool(shape), b.dtype) for shape, b in zip(shapes, scratch, strict=True)]
        self.made = [(make, from_pool(parts)) for make, parts in self._made]
        self.calls = from_pool(calls)
        self.touched = [from_pool([(_BUFFER, place) for place in own]) for own in touched]
        first = len(given)
        places = {key: place - first for key, place in roots.items()}
        among = [(call, [place - first for place in own]) for call, own in zip(binder.calls, touched, strict=True)]
        self.pattern = pattern_of(among, places, len(scratch), binder.fault)
        del self._places, self._made  # they have symbols

    def filled(
        self, values: Values, given: Sequence[Buffer], scratch: Callable[[Any, np.dtype], Buffer], fault: Buffer
    ) -> list[tuple[Call, Sequence[Buffer]]]:
        """The calls for these values and buffers, each with the owners of what it touches."""
        pool = [*values, *self.same, *given]
        for shape, dtype in self.scratch:
            pool.append(scratch(tuple(shape(pool)), dtype))
        pool.append(fault)
        for make, parts in self.made:
            pool.append(make(*parts(pool)))
        return list(zip(self.calls(pool), [own(pool) for own in self.touched], strict=True))

    def _place(self, value: Any) -> _Place:
        """Where a value will lie in the pool; Unfit where it cannot be made there."""
        if isinstance(value, SizeSymbol):
            return _VALUE, value.node
        if isinstance(value, Buffer):
            known = self._places.get(id(value))
            if known is None:
                known = self._places[id(value)] = self._view(value)
            return known
        if isinstance(value, Scalar):
            return self._composed(value, value.kind, [value.symbol])
        if isinstance(value, Call):
            kind = type(value)
            return self._composed(None, kind, [getattr(value, name) for name in names_of(kind)])
        if isinstance(value, Words):
            facts = vars(value)
            return self._composed(value, partial(_words, type(value), list(facts)), list(facts.values()))
        if isinstance(value, (list, tuple)):
            kind = type(value)
            make = kind if hasattr(kind, "_fields") else _together if kind is tuple else _listed
            return self._composed(value, make, list(value))
        if isinstance(value, Mapping):
            keys = list(value)
            return self._composed(value, lambda *items: dict(zip(keys, items, strict=True)), list(value.values()))
        if isinstance(value, str):
            return self._kept(self.trace.text(value))
        if isinstance(value, FIXED) or (
            isinstance(value, (set, frozenset)) and all(isinstance(x, FIXED) for x in value)
        ):
            return self._kept(value)
        raise Unfit

    def _kept(self, value: Any) -> _Place:
        self.same.append(value)
        return _SAME, len(self.same) - 1

    def _composed(self, value: Any, make: Callable[..., Any], parts: Sequence[Any]) -> _Place:
        """What is made of parts; `value` where all of them are the same for all sizes, unless it is None."""
        before, places = len(self.same), [self._place(part) for part in parts]
        if value is not None and all(kind == _SAME for kind, _ in places):
            own = [self.same[number] for _, number in places]
            del self.same[before:]
            return self._kept(value if all(map(is_, own, parts)) else make(*own))  # a text may have had symbols
        self._made.append((make, places))
        return _MADE, len(self._made) - 1

    def _view(self, buffer: Buffer) -> _Place:
        """A buffer that shows another one."""
        if buffer.owner is None or type(buffer) is not Buffer:
            raise Unfit
        dtype = buffer.dtype

        def view(shown: Buffer, shape: Any, alignment: int, offset: int, steps: Any) -> Buffer:
            made = Buffer(shape, dtype, alignment=alignment)
            made.owner, made.offset, made.steps = shown, offset, steps
            return made

        facts = buffer.owner, buffer.shape, buffer.alignment, buffer.offset, buffer.steps
        return self._composed(None, view, facts)


def _together(*items: Any) -> tuple[Any, ...]:
    return items


def _listed(*items: Any) -> list[Any]:
    return list(items)


def _words(kind: type[Words], names: Sequence[str], *facts: Any) -> Words:
    """Words with these attributes."""
    made = kind.__new__(kind)
    vars(made).update(zip(names, facts, strict=True))
    return made


def template(
    bind: Bind, binder: Binder, given: GivenBuffers, trace: Trace, shapes: Sequence[Any], opened: bool = False
) -> CallTemplate | None:  # fmt: skip
    """A CallTemplate of the operator that `binder` has bound last; None where there is none.

    bind     records its calls again;  opened: of a Choice that is fixed its calls were taken
    shapes   for each of `given` its (offset, shape, steps) with symbols of the trace
    """
    stand_ins, outside = _stand_ins(given.buffers, shapes, binder.outside)
    given_again = [stand_ins[id(b)] for b in given.buffers]
    answers = iter(binder.answers)  # those for calls with sizes
    before = {step: text for step, text in binder.wrong.items() if step != binder.step}
    again = replace(
        binder, calls=[], scratches=[[]], tables=[], arenas=[], managed=[], paged=[], notes=[], wrong=before.copy(),
        outside=outside, workspace=None,
        answers=[], sure=lambda calls: next(answers, False),
    )  # fmt: skip
    try:
        bind(again, given_again)
        if opened:
            again.calls = [one for call in again.calls for one in call.opened()]
        special = again.tables or again.arenas or again.managed or again.paged or binder.managed or binder.paged
        if special or again.wrong.keys() - {binder.step} != before.keys():
            return None
        return CallTemplate(trace, again, given_again, [stand_ins[id(b)] for b in given.roots])
    except (*NO_SYMBOLS, Unfit):
        return None


def _stand_ins(
    given: Sequence[Buffer], shapes: Sequence[Any], outside: frozenset[int]
) -> tuple[dict[int, Buffer], frozenset[int]]:  # fmt: skip
    """Buffers that lie in each other as the given ones and their roots do, by the ids of these, with symbols for sizes;
    ids of what a Scope owns of them.
    """
    made: dict[int, Buffer] = {}
    for b, (_, shape, steps) in zip(given, shapes, strict=True):
        if b.owner is None:
            own = made.setdefault(id(b), Buffer(shape, b.dtype, b.ptr, b.alignment))
            own.steps = steps
    for b, (offset, shape, steps) in zip(given, shapes, strict=True):
        if id(b) not in made:
            root = owner(b)
            own = made[id(b)] = Buffer(shape, b.dtype, alignment=b.alignment)
            own.owner = made.setdefault(id(root), Buffer((), root.dtype, root.ptr))  # nobody looks at its shape
            own.offset, own.steps = offset, steps
    return made, frozenset([id(new) for old, new in made.items() if old in outside])


Sizes = tuple[int, ...]
SAMPLES, MADE, IDLE = 4, 64, 12  # sizes that tell which of them change; templates of an operator; misses more than hits


class Template(Protocol):
    """What holds for sizes of which `steps` ask the same."""

    steps: list[TraceStep]


def values_of(one: Template, trace: Trace) -> Values:
    """The values of a template's nodes for the sizes of the trace that it was made of."""
    alone = Questions[Any]()
    alone.add(one.steps, one)
    found = alone.fitting([symbol.value for symbol in trace.symbols])
    assert found is not None
    return found[1]


One = TypeVar("One", bound=Template)


class Templates(Generic[One]):
    """The templates of one operator of which a bind function can tell all but sizes.

    What was the same whenever templates failed is taken for a constant, what changed alike for one symbol.
    """

    def __init__(self) -> None:
        self.samples: list[Sizes] = []
        self.numbers: list[int] = []  # of the symbol that each size is; -1 for constants
        self.places: list[int] = []  # of a size that is the symbol
        self._alike: Callable[[Sequence[int]], Sequence[int]] | None = None  # takes sizes like the last of `samples`
        self.made: dict[int, One] = {}  # by id, the one that was of use last at the end
        self.questions: Questions[One] = Questions()
        self.idle = 0

    def fitting(self, sizes: Sizes) -> tuple[One, Values] | None:
        """A template for these sizes, and the values of its symbols."""
        if not self.made or not self.vary_alike(sizes):
            return None
        found = self.questions.fitting([sizes[i] for i in self.places])
        if found is not None:
            self.idle = max(0, self.idle - 2)
            self.made[id(found[0])] = self.made.pop(id(found[0]))
        return found

    def trace(self, sizes: Sizes) -> tuple[Trace, list[Any]] | None:
        """A trace of what changes, and the sizes with its symbols; None where no template shall be made.

        Not for the second sizes either: a program may have batches and a last one.
        """
        self.idle += 1
        if not self.samples or not self.vary_alike(sizes):
            self.samples = [*self.samples, sizes][-SAMPLES:]
            self.made, self.questions = {}, Questions()
            numbers: dict[Sizes, int] = {}
            self.numbers = [-1] * len(sizes) if len(self.samples) == 1 else [
                numbers.setdefault(column, len(numbers)) if len({*column}) > 1 else -1
                for column in zip(*self.samples, strict=True)
            ]  # fmt: skip
            self.places = [self.numbers.index(n) for n in range(len(numbers))]
            self._alike = None  # most are not asked again
            return None
        if not self.places or self.idle > IDLE:
            return None
        trace = Trace([sizes[i] for i in self.places])
        return trace, [size if n < 0 else trace.symbols[n] for n, size in zip(self.numbers, sizes, strict=True)]

    def keep(self, one: One) -> None:
        """Another template, in the place of the one that was of no use for longest."""
        if len(self.made) >= MADE:
            del self.made[next(iter(self.made))]
            self.questions = Questions()
            for other in self.made.values():
                self.questions.add(other.steps, other)
        self.made[id(one)] = one
        self.questions.add(one.steps, one)

    def vary_alike(self, sizes: Sizes) -> bool:
        """Whether what is taken for a constant is that here, and what is one symbol has one value."""
        first, own = self.samples[-1], len(sizes)
        if own != len(first):
            return False
        if self._alike is None:
            self._alike = taken([own + i if n < 0 else self.places[n] for i, n in enumerate(self.numbers)])
        return self._alike(sizes + first) == sizes


Known = dict[int, tuple[Any, Templates[CallTemplate]]]
"""The templates of a program's operators by their step, with all but sizes that a bind function can tell."""


class Resized:
    """How the operators of one plan get their calls from templates.

    known   those of the plans before, which get more
    """

    def __init__(self, binder: Binder, known: Known | None = None) -> None:
        self.binder, self.known = binder, {} if known is None else known

    def templates(self, what: Any, given: GivenBuffers) -> Templates[CallTemplate]:
        """Those of the operator that is bound now."""
        key = what, given.facts
        known = self.known.get(self.binder.step)
        if known is None or known[0] != key:
            known = self.known[self.binder.step] = key, Templates()
        return known[1]

    def filled(
        self, templates: Templates[CallTemplate], given: GivenBuffers
    ) -> tuple[CallTemplate, list[tuple[Call, Sequence[Buffer]]]] | None:  # fmt: skip
        """A template and the operator's calls, each with the owners of what it touches; None where no template fits.
        """
        found = templates.fitting(given.sizes)
        if found is None:
            return None
        one, values = found
        scratches = self.binder.scratches[-1]
        filled = one.filled(values, [*given.buffers, *given.roots], self.binder.scratch, self.binder.fault)
        if one.answers is not None and one.answers != list(_answers((call for call, _ in filled), self.binder.sure)):
            scratches.clear()
            return None
        if one.wrong is not None:
            self.binder.wrong[self.binder.step] = one.wrong
        for text in one.notes:
            self.binder.note(text)
        return one, filled

    def learn(
        self, templates: Templates[CallTemplate], given: GivenBuffers, bind: Bind, calls: Sequence[Call],
        notes: Sequence[str], opened: bool = False,
    ) -> None:  # fmt: skip
        """Keep a template of these calls, which `bind` has just recorded, if there is one that gives them."""
        traced, own = templates.trace(given.sizes), given.buffers
        if traced is None:
            return
        made = template(bind, self.binder, given, traced[0], with_sizes(own, traced[1]), opened)
        if made is None:
            return
        scratch = iter(self.binder.scratches[-1])

        def same(shape: Any, dtype: np.dtype) -> Buffer:
            there = next(scratch)
            return there if (there.shape, there.dtype) == (shape, dtype) else Buffer(shape, dtype)

        try:
            values = values_of(made, traced[0])
            again = [call for call, _ in made.filled(values, [*own, *given.roots], same, self.binder.fault)]
        except StopIteration:
            return
        told = made.notes == list(notes) and made.wrong == self.binder.wrong.get(self.binder.step)
        if told and next(scratch, None) is None and alike(again, list(calls)):
            templates.keep(made)


def _answers(calls: Iterable[Any], sure: Callable[[Sequence[Call]], bool]) -> Iterator[bool]:
    """What `Binder.choose` asked when it recorded these calls, for the products that they are now."""
    for call in calls:
        for variant in call.ways() if isinstance(call, Choice) else ():
            yield from _answers(variant, sure)
            yield sure(variant)


def with_sizes(given: Sequence[Buffer], sizes: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """(offset, shape, steps) of each buffer, as GivenBuffers has them in a row."""
    found, at = [], 0
    for b in given:
        shape = at + 1 + b.ndim
        end = shape + (b.ndim if b.steps is not None else 0)
        found.append((sizes[at], tuple(sizes[at + 1 : shape]), None if b.steps is None else tuple(sizes[shape:end])))
        at = end
    return found
