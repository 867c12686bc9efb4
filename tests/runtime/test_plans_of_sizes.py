"""A plan that takes over from plans for other sizes is the very plan that is made from nothing, in all its parts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest

import minigraph as mg
from bench import changing_shapes
from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.record import moved, templates
from minigraph.kernels.cuda.record.moved import given_in
from minigraph.kernels.cuda.record.templates import CallTemplate, Templates
from minigraph.runtime.cuda import resized
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.cuda.operators import Operators, Outline, StepOutline
from minigraph.runtime.cuda.resized import ScheduleTemplate
from minigraph.runtime.cuda.sizes import Siblings
from minigraph.types import TensorType, float32
from tests.runtime.test_repeats import Facts, facts
from tests.runtime.test_resized import PLACED, told
from tests.runtime.test_templates import trained
from tests.support.grades import graded
from tests.support.random_programs import random_program

SIZES = 100, 3, 0, 64, 17, 8, 1, 256, 33, 16, 7, 128, 2, 48, 15, 129, 24, 255, 5, 32
SEEDS = graded(range(60), now=lambda seed: seed < 12)
Feeds = dict[str, TensorType]


def whole(bound: BoundProgram, placed: bool) -> list[Any]:
    """All that a plan says, in plain data; `placed`: it lies where another one lies, so that its places are others."""
    found, first = Facts(), dict[int, int]()
    shared = [first.setdefault(id(b), i) for i, b in enumerate(bound.buffers)]
    joined = [(i, found.of(call)) for i, call in bound.binder.joined.items()]
    fields = [(found.of(b), at) for b, at in bound.staging.fields]
    outside = [(name, found.of(b)) for name, b in bound.outside.items()]
    results = [(found.of(b), name) for b, name in bound.results]
    constants = [(found.of(b), at) for b, at in bound.constants]
    return [
        told(bound.schedule), [part for i, part in enumerate(facts(bound)) if not placed or i not in PLACED], shared,
        list(map(found.of, bound.buffers)), joined, bound.binder.gone, fields, bound.staging.sent, outside, results,
        bound.once, constants, bound.constant_bytes, bound.units.units,
        [found.of(b) for b in bound.units.blocks.values()],
    ]  # fmt: skip


def check(program: Any, fetches: Sequence[str], feeds: Sequence[Feeds], tf32: bool = False) -> Counter[type]:
    """Each plan is as if it had been made alone, and takes no more than the largest; which templates were of use."""
    siblings, plans, most, hits = Siblings(), list[BoundProgram](), 0, Counter[type]()
    fitting = Templates.fitting

    def noted(self: Any, sizes: Any) -> Any:
        found = fitting(self, sizes)
        hits[type(found[0] if found else None)] += 1
        return found

    def made(types: Feeds, known: Siblings | None) -> BoundProgram | str:
        try:
            return bind_program(program, types, fetches, seed=3, tf32=tf32, siblings=known)
        except MinigraphError as problem:
            return str(problem)

    for types in feeds:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Templates, "fitting", noted)
            one = made(types, siblings)
        alone = made(types, None)
        if isinstance(one, str) or isinstance(alone, str):
            assert one == alone
            continue
        placed = one.layout in siblings.layouts.known
        assert whole(one, placed) == whole(alone, placed), types
        most = max(most, alone.arena_bytes)
        assert one.arena_bytes <= most, "no more than the largest alone"
        plans.append(one)
        siblings.keep(one.schedule, one.layout)
    return hits


def check_random(seed: int) -> Counter[type]:
    """Of a random program whose batch has any size."""
    case, r = random_program(seed), random.Random(seed)
    program = case.program
    if seed % 2:
        compiled = mg.static.CompiledProgram(program, build_strategy=mg.static.BuildStrategy.all())
        program = compiled.program_for(tuple(case.fetches))
    known = {name: program.vars[name].shape for name in case.feeds}
    feeds = [
        {n: TensorType(tuple(size if d == -1 else d for d in known[n]), a.dtype) for n, a in case.feeds.items()}
        for size in r.sample(SIZES, 10)
    ]  # fmt: skip
    return check(program, case.fetches, feeds)


def check_model(model: str, sizes: Sequence[int], tf32: bool = True) -> Counter[type]:
    """Of a model of bench/changing_shapes.py."""
    given, (program, loss) = changing_shapes.feeds(model), trained(model)
    feeds = [
        {name: TensorType(a.shape, a.dtype) for name, a in zip("xy", given(n), strict=True)} for n in sizes
    ]  # fmt: skip
    return check(program, [loss], feeds, tf32)


def check_rows_and_columns() -> Counter[type]:
    """Of a program of two sizes: which value may overwrite which follows from whether they are equal, or 1."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = (mg.static.data(name, [None, None]) for name in "xy")
        a, b = mg.sum(mg.exp(x), axis=1, keepdim=True), mg.sum(mg.exp(y), axis=0, keepdim=True)
        both = mg.tanh(a * b)
        parts = mg.split(mg.concat([mg.exp(x), both], axis=1), 2, axis=1)
        out = mg.sum(parts[0] * parts[1]) + mg.sum(mg.transpose(both, [1, 0]) @ both)
    pairs = [(8, 4), (6, 4), (9, 12), (5, 6), (4, 1), (1, 4), (6, 6), (1, 1), (7, 2), (2, 7), (16, 8), (8, 16), (3, 1)]
    pairs += [(5, 1), (9, 1), (1, 9), (1, 6), (1, 8), (12, 3), (6, 1), (3, 12), (0, 4), (4, 0)]
    feeds = [{"x": TensorType((n, k), float32), "y": TensorType((n + k, k), float32)} for n, k in pairs]
    return check(main, [out.name], feeds)


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_of_random_programs(seed: int) -> None:
    check_random(seed)


@pytest.mark.parametrize("tf32", [False, True])
def test_plans_of_a_perceptron(tf32: bool) -> None:
    hits = check_model("mlp", SIZES, tf32)
    assert hits[ScheduleTemplate] > 12 and hits[CallTemplate] > 60


def test_plans_of_a_block() -> None:
    hits = check_model("block", SIZES[:12])
    assert hits[ScheduleTemplate] > 4 and hits[CallTemplate] > 60


def test_plans_of_rows_and_columns() -> None:
    assert check_rows_and_columns()[ScheduleTemplate] > 2


def test_plans_in_which_what_reports_has_no_elements() -> None:
    """No kernel of it runs, but ranks that have elements tell each other of faults, and wait for the others."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        declared = ("s", [None, 5], "float32"), ("l", [None, 1], "int64"), ("x", [None], "float32")
        scores, labels, x = (mg.static.data(*one) for one in declared)
        outs = mg.nn.functional.cross_entropy(scores, labels, reduction="none"), mg.exp(x)
    sizes = [(0, 3), (0, 4), (2, 4), (0, 5)]
    types = {n: main.vars[n].type for n in "slx"}
    feeds = [
        {n: TensorType((m if n == "x" else k, *t.shape[1:]), t.dtype) for n, t in types.items()} for k, m in sizes
    ]  # fmt: skip
    check(main, [out.name for out in outs], feeds)


def test_an_operator_is_given_what_it_is_known_to_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    own, counts = Operators._again, Counter[bool]()

    def again(self: Operators, known: StepOutline, step: Any) -> None:
        one, other = self._given(known), given_in(self._slots(step), self.binder.outside)
        assert (one.facts, one.sizes, len(one.roots)) == (other.facts, other.sizes, len(other.roots))
        for mine, its in zip([*one.buffers, *one.roots], [*other.buffers, *other.roots], strict=True):
            assert mine is its or (mine.shape, mine.dtype) == (its.shape, its.dtype)
            counts[mine is its] += 1
        own(self, known, step)

    monkeypatch.setattr(Operators, "_again", again)
    check_rows_and_columns()
    check_model("mlp", SIZES[:8])
    check_model("block", SIZES[:8])
    list(map(check_random, range(8)))
    assert counts[True] > 1000 and counts[False] > 10, "some are of a type that is not read"


def test_what_is_known_of_views_that_lie_otherwise_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resized, "Outline", partial(Outline, views=[(4, True)]))
    monkeypatch.setattr(Operators, "_again", None)
    check_model("block", SIZES[:6])


def check_all() -> None:
    check_rows_and_columns()
    check_model("mlp", SIZES)
    check_model("block", SIZES[:8])


def sharing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values share buffers as they do for the first sizes."""
    own, first = Siblings.schedule, WeakKeyDictionary[Siblings, Any]()

    def schedule(self: Siblings, *given: Any) -> Any:
        made, sharing, outline = own(self, *given)
        return made, first.setdefault(self, sharing), outline

    monkeypatch.setattr(Siblings, "__hash__", object.__hash__)
    monkeypatch.setattr(Siblings, "schedule", schedule)


def places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value lies in the memory that it shows where its like for other sizes lies."""
    own, first = ScheduleTemplate.filled, dict[tuple[int, int], Any]()

    def filled(self: ScheduleTemplate, found: Any) -> Any:
        values = own(self, found)
        for i, v in enumerate(values):
            v.layout = v.layout and first.setdefault((id(self), i), v.layout)
        return values

    monkeypatch.setattr(ScheduleTemplate, "filled", filled)


def sizes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that follows from sizes is taken for one that is the same for all."""
    own = CallTemplate._place

    def place(self: CallTemplate, value: Any) -> Any:
        return self._kept(value.value) if hasattr(value, "trace") and value.node > 6 else own(self, value)

    monkeypatch.setattr(CallTemplate, "_place", place)


def patterns_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that touch other buffers are taken for those that did before."""
    for module in (moved, templates):
        monkeypatch.setattr(module, "pattern_of", lambda *_: "all alike")


@pytest.mark.parametrize("bug", [sharing_of_others, places_of_others, sizes_of_others, patterns_of_others])
def test_what_holds_for_other_sizes_only_is_seen(monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, TypeError, IndexError, KeyError)):
        check_all()
