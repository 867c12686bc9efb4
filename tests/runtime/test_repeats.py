"""Operators like one that was bound before get copies of its calls: the same as if each were bound by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import ShapeError
from minigraph.kernels.cuda.record.buffer import Buffer, Words, owner
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Choice, Fill, Launch
from minigraph.kernels.cuda.record.moved import Repeats, given_in
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.cuda.sizes import Siblings
from minigraph.runtime.options import DEFAULT
from minigraph.types import TensorType
from tests.support.grades import graded
from tests.support.random_programs import random_program

SEEDS = graded(range(60), now=lambda seed: seed < 10)


class Facts:
    """Calls as plain data: whose memory each operand is, numbered as it comes, and where in it."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept: list[Buffer] = []  # so that no id comes twice

    def of(self, what: Any) -> Any:
        if isinstance(what, Buffer):
            root, offset = owner(what), 0
            self.kept.append(root)
            inner: Buffer | None = what
            while inner is not None:
                offset, inner = offset + inner.offset, inner.owner
            number = self.numbers.setdefault(id(root), len(self.numbers))
            return "buffer", number, root.nbytes, offset, what.shape, str(what.dtype), what.alignment
        if isinstance(what, Words):
            return [type(what).__name__, [self.of(w) for w in what.words]]
        if isinstance(what, Choice):
            return ["choice", what.step, [(n, self.of(calls)) for n, calls in what.variants.items()]]
        if isinstance(what, np.generic):
            return str(what.dtype), what.item()
        if isinstance(what, (list, tuple)):
            return [self.of(x) for x in what]
        names = getattr(type(what), "__slots__", None)
        return [type(what).__name__, [self.of(getattr(what, n)) for n in names]] if names else repr(what)


def facts(bound: BoundProgram) -> list[Any]:
    """All that a plan is made of."""
    found = Facts()
    tables = [(found.of(t.words), [a.tobytes() for a in t.arrays]) for t in bound.binder.tables]
    scratch = [[found.of(b) for b in own] for own in bound.binder.scratches]
    return [
        list(map(found.of, bound.binder.calls)), bound.spans, bound.order, bound.arena_bytes, bound.live_bytes,
        sorted(bound.binder.notes), bound.binder.wrong, tables, scratch, [o for _, o in bound.offsets],
    ]  # fmt: skip


@pytest.fixture
def apart(monkeypatch):
    """Plans are made twice: as they are, and with each operator bound by itself."""

    def both(make):
        known = make()
        with monkeypatch.context() as patch:
            patch.setattr(Repeats, "again", lambda *_: None)
            return known, make()

    return both


def again(monkeypatch) -> Counter[str]:
    """How often calls are copied from now on, by operator."""
    counts, real = Counter[str](), Repeats.again

    def counted(self: Repeats, key: Any, given: Any) -> Any:
        calls = real(self, key, given)
        counts[key.what[0].type] += calls is not None
        return calls

    monkeypatch.setattr(Repeats, "again", counted)
    return counts


def layers(count: int, drop: float = 0.0) -> tuple[Any, Any]:
    """A training step of linear layers, each with all that follows: residual, layer norm, dropout, embedding."""
    main, startup = mg.static.Program(), mg.static.Program()
    f = mg.nn.functional
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        ids = mg.static.data("ids", [4, 8], "int64")
        h = mg.nn.Embedding(32, 8)(ids)
        for _ in range(count):
            h = f.layer_norm(h + f.gelu(mg.nn.Linear(8, 8)(h)), [8])
            h = h + f.dropout(f.relu(mg.nn.Linear(8, 8)(h)), drop) if drop else h * 0.5
        loss = mg.mean(h * mg.nn.Embedding(32, 8)(ids))
        mg.optimizer.AdamW(1e-3).minimize(loss)
    return main, loss


def bound(program: Any, types: dict[str, TensorType], fetches: list[str], tf32: bool = False) -> BoundProgram:
    return bind_program(program, types, fetches, tf32=tf32, seed=3)


@pytest.mark.parametrize("drop", [0.0, 0.25])
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_layers(apart, monkeypatch, drop, passes, tf32):
    main, loss = layers(6, drop)
    if passes:
        compiled = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all())
        main = compiled.program_for((loss.name,))
    types = {"ids": TensorType((4, 8), mg.types.int64)}
    counts = again(monkeypatch)
    one, other = apart(lambda: bound(main, types, [loss.name], tf32))
    assert facts(one) == facts(other)
    linear = counts["fused_gemm_epilogue"] if passes else counts["matmul"]
    kinds, all_of_them = (2 if drop and passes else 1), (12 if drop else 6)
    assert linear == all_of_them - kinds  # but the first of each activation


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(apart, seed):
    case = random_program(seed)
    program = case.program
    if seed % 2:
        compiled = mg.static.CompiledProgram(program, build_strategy=mg.static.BuildStrategy.all())
        program = compiled.program_for(tuple(case.fetches))
    types = {name: TensorType(a.shape, a.dtype) for name, a in case.feeds.items()}
    one, other = apart(lambda: bound(program, types, case.fetches))
    assert facts(one) == facts(other)




def test_what_differs_is_bound_by_itself(monkeypatch):
    """The sign of a zero, memory that is shared, another type."""
    counts = again(monkeypatch)
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [4, 8])
        a = mg.scale(mg.tanh(x), scale=2.0, bias=0.0)
        b = mg.scale(mg.sin(x), scale=2.0, bias=-0.0)
        c = mg.scale(mg.exp(x), scale=2.0, bias=0.0)
        same, two = mg.tanh(a + a), mg.tanh(b + c)
    types = {"x": TensorType((4, 8), mg.types.float32)}
    found = bound(main, types, [v.name for v in (same, two, a, b, c)])
    assert counts["scale"] == 1 and counts["elementwise_add"] == 0
    launches = [c for c in every_call(found.binder.calls) if isinstance(c, Launch)]
    assert len(launches) >= 8


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_takes_over_what_an_earlier_one_of_its_program_recorded(seed):
    """For the same sizes, so that all that may be taken over is, and for others; as if nothing had been there."""
    case = random_program(seed)
    program = case.program
    if seed % 2:
        compiled = mg.static.CompiledProgram(program, build_strategy=mg.static.BuildStrategy.all())
        program = compiled.program_for(tuple(case.fetches))
    siblings = Siblings()
    for more in (0, 0, 2, 0, 1):
        types = {
            name: TensorType(
                tuple(n + more * (d == -1) for n, d in zip(a.shape, program.vars[name].shape, strict=True)), a.dtype
            )
            for name, a in case.feeds.items()
        }
        try:
            one = bind_program(program, types, case.fetches, seed=3, siblings=siblings)
        except ShapeError:
            assert more, "only other sizes may not suit a program that transposes its batch"
            continue
        assert facts(one) == facts(bound(program, types, case.fetches))
    assert siblings.earlier


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_plans_for_other_sizes_bind_the_update_once(monkeypatch, passes, drop):
    main, startup = mg.static.Program(), mg.static.Program()
    f = mg.nn.functional
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x, y = mg.static.data("x", [None, 8]), mg.static.data("y", [None, 1], "int64")
        h = f.dropout(f.relu(mg.nn.Linear(8, 16)(x)), drop)
        loss = f.cross_entropy(mg.nn.Linear(16, 5)(h), y)  # it reports labels that are none, so the update is guarded
        mg.optimizer.AdamW(1e-3).minimize(loss)
    if passes:
        compiled = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all())
        main = compiled.program_for((loss.name,))
    counts = again(monkeypatch)
    siblings = Siblings()
    sizes = (7, 3, 12, 0, 1, 3)
    for n in sizes:
        types = {"x": TensorType((n, 8), mg.types.float32), "y": TensorType((n, 1), mg.types.int64)}
        before = counts.copy()
        one = bind_program(main, types, [loss.name], seed=3, siblings=siblings)
        taken = counts - before
        assert taken["fused_adamw" if passes else "adamw"] == (0 if n == sizes[0] else 1 if passes else 4)
        assert facts(one) == facts(bound(main, types, [loss.name]))


def test_what_was_brought_into_an_arena_later_is_taken_over_as_it_was_recorded():
    """The update brings gradients side by side, whose producers recorded them apart."""
    main, loss = layers(3)
    types = {"ids": TensorType((4, 8), mg.types.int64)}
    options = DEFAULT._replace(multi_tensor="arena")
    compiled = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all())
    main = compiled.program_for((loss.name,))
    siblings = Siblings()
    first, second = (
        bind_program(main, types, [loss.name], seed=3, options=options, siblings=siblings) for _ in range(2)
    )
    assert first.binder.arenas and facts(first) == facts(second)
    assert facts(second) == facts(bind_program(main, types, [loss.name], seed=3, options=options))


def test_a_plan_that_fits_into_the_room_that_is_there_is_laid_out_as_recorded():
    main, loss = layers(6)
    types = {"ids": TensorType((4, 8), mg.types.int64)}
    best = bound(main, types, [loss.name])
    roomy = bind_program(main, types, [loss.name], seed=3, room=2 * best.arena_bytes)
    assert roomy.order == sorted(roomy.order) and best.arena_bytes <= roomy.arena_bytes <= 2 * best.arena_bytes
    tight = bind_program(main, types, [loss.name], seed=3, room=best.arena_bytes - 1)
    assert facts(tight) == facts(best), "what does not fit gets the best order"
    for bound_program in (roomy, tight):
        placed = [(offset, b.nbytes, life) for (b, offset), (_, life) in
                  zip(bound_program.offsets, bound_program.blocks, strict=True)]  # fmt: skip
        for i, (at, size, life) in enumerate(placed):
            for other, other_size, beside in placed[:i]:
                apart = at + size <= other or other + other_size <= at
                assert apart or life.last < beside.first or beside.last < life.first


def test_the_copy_of_a_choice_makes_a_variant_when_it_is_asked_for(monkeypatch):
    here, there, moved = Buffer((4,), mg.types.float32), Buffer((4,), mg.types.float32), []
    original = Fill.moved
    monkeypatch.setattr(Fill, "moved", lambda self, *args: moved.append(self.value) or original(self, *args))
    copy = Choice({"first": [Fill(here, 1)], "second": [Fill(here, 2)]}, 3).moved({id(here): there}, 5)
    again = copy.moved({id(there): here}, None)
    assert list(copy.variants) == ["first", "second"] and len(again.variants) == 2
    assert (copy.step, again.step, moved) == (5, 5, [])
    (call,) = again.variants["second"]
    assert call.destination is here and again.variants["second"][0] is call and moved == [2, 2]
    (other,) = copy.variants["second"]
    assert other.destination is there and moved == [2, 2]


def test_what_is_given_twice_is_told_from_what_is_not():
    """Operators are alike only if each place that shows another's memory does so in both."""
    a, b, c = (Buffer((2, 3), np.dtype("float32")) for _ in range(3))
    half, other = a.view((1, 3)), a.view((1, 3))
    given = {
        "others": [[a, b], c], "the first again": [[a, b], a], "the second again": [[a, b], b],
        "a part": [[a, b], half], "a part of the second": [[a, b], b.view((1, 3))], "a part, then all": [[half, b], a],
        "a part again": [[half, b], half], "another part": [[half, b], other], "all of it": [[a, b], a.view((2, 3))],
    }  # fmt: skip
    found = {name: given_in(slots, ()) for name, slots in given.items()}
    assert len({(one.facts, one.sizes) for one in found.values()}) == len(given)
    for name, one in found.items():
        buffers = [*given[name][0], given[name][1]]
        assert [(*map(id, one.roots),)] == [tuple(dict.fromkeys(id(owner(b)) for b in buffers))]
        assert len(one.sizes) == sum(1 + len(b.shape) for b in buffers)  # of each place, also where it comes again
