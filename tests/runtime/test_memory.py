"""Layouts, orders of calls and reports of memory: nothing that lives at the same time shares bytes, nothing races."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigraph as mg
from minigraph.errors import FeedError, ProgramError
from minigraph.kernels.cuda.optimizer import update
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.kernels.cuda.record.workspace import Algorithm, settling
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.runtime import memory
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.layout import graph_streams, placement
from minigraph.runtime.cuda.layout.graph_streams import assigned, waits
from minigraph.runtime.cuda.layout.order import Unit, dependencies, greedy, lives, mattering
from minigraph.runtime.executor import Executor
from minigraph.runtime.memory import (
    Life,
    by_birth,
    by_importance,
    large_first,
    layout,
    most_live,
    peak,
    rearranged,
    rounded,
)
from minigraph.runtime.options import RunOptions
from minigraph.types import TensorType, float32
from tests.support.grades import graded
from tests.support.random_programs import random_program

LIVES = st.lists(
    st.builds(lambda n, a, d: Life(n, a, a + d), st.integers(0, 5000), st.integers(-1, 30), st.integers(0, 12)),
    max_size=40,
)


def overlaps(lives, offsets):
    """Pairs of blocks that share bytes while both are needed."""
    blocks = [(life, o) for life, o in zip(lives, offsets, strict=True) if life.nbytes]
    return [
        (a, b) for (a, o), (b, p) in itertools.combinations(blocks, 2)
        if a.first <= b.last and b.first <= a.last and o < p + b.nbytes and p < o + a.nbytes
    ]  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        layout, by_birth, large_first, partial(rearranged, enough=1), partial(rearranged, enough=9999),
        *(partial(by_importance, key=k) for k in (memory._bytes, memory._steps)),
    ],
)
@given(LIVES)
def test_blocks_that_live_together_lie_apart(place, lives):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "MANY", 10)
        offsets, size = place(lives)
    assert not overlaps(lives, offsets)
    assert size >= most_live(lives)
    assert all(o + rounded(life.nbytes) <= size for life, o in zip(lives, offsets, strict=True) if life.nbytes)


def test_a_layout_is_the_best_of_several_ways():
    lives = [Life(100 << 10, 0, 1), Life(300 << 10, 0, 3), Life(200 << 10, 2, 5), Life(400 << 10, 4, 5)]
    sizes = {by_birth(lives)[1], by_importance(lives, lambda x: (x.nbytes,))[1]}
    assert layout(lives)[1] == min(sizes) < max(sizes)
    assert layout(lives)[1] == most_live(lives)


def test_what_lives_at_the_fullest_step_is_placed_first():
    """The gradients of a last layer that are merged: all other ways leave a gap as large as one of them."""
    lives = [
        Life(size << 20, *steps)
        for size, *steps in (
            (128, 7, 14), (256, 14, 24), (128, 17, 28), (256, 23, 24), (256, 24, 35), (256, 25, 26), (128, 26, 38),
            (256, 27, 29), (256, 28, 29), (256, 29, 35), (256, 30, 31), (128, 31, 40),
        )
    ]  # fmt: skip
    keys = memory._bytes, memory._bytes_times_steps, memory._steps
    others = [by_birth(lives)[1], *(by_importance(lives, key)[1] for key in keys)]
    assert min(others) == 1280 << 20
    assert layout(lives)[1] == most_live(lives) == 1152 << 20


def test_large_blocks_are_placed_in_other_orders_where_a_gap_stays(monkeypatch):
    """A last layer with a z-loss beside workspaces of products: each other way leaves a gap of a fifth at least."""
    lives = [
        Life(size << 16, *steps)
        for size, *steps in (
            (16, -1, 25), (16, 0, 21), (256, 0, 0), (16, 2, 20), (250, 3, 8), (512, 3, 3), (250, 5, 15), (250, 8, 15),
            (250, 15, 18), (250, 18, 20), (16, 19, 24), (256, 19, 19), (62, 20, 20), (16, 24, 25), (16, 25, 25),
        )
    ]  # fmt: skip
    offsets, size = layout(lives)
    assert size == most_live(lives) and not overlaps(lives, offsets)
    monkeypatch.setattr(memory, "rearranged", lambda lives, enough: ([], 1 << 60))
    assert layout(lives)[1] > 1.2 * size


# orders of calls

UNITS = st.lists(
    st.builds(Unit, st.sets(st.integers(0, 8), max_size=3), st.sets(st.integers(0, 8), max_size=2),
              st.sampled_from([False] * 9 + [True])), max_size=25,
)  # fmt: skip


def results(units, order):
    """What each unit reads when units run in this order: the writer of each block, and how often it was written."""
    state: dict[int, tuple] = {}
    seen = {}
    for i in order:
        seen[i] = sorted((b, state.get(b)) for b in units[i].blocks)
        for b in units[i].writes:
            state[b] = (i, state.get(b))
    return seen, state


@given(UNITS)
def test_every_order_computes_the_same(units):
    before = dependencies(units)
    as_written = list(range(len(units)))
    sizes = {b: 1 << b for b in range(9)}
    order = greedy(mattering(units, sizes), before, sizes, given={0, 1}, kept={2})
    assert sorted(order) == as_written
    assert results(units, order) == results(units, as_written)
    for i in (i for i in order if units[i].barrier):
        assert all((j < i) == (order.index(j) < order.index(i)) for j in order if j != i)


@given(UNITS, st.integers(1, 4))
def test_lanes_keep_every_dependency_and_no_call_waits_twice(units, streams):
    before = dependencies(units)
    made = assigned(range(len(units)), dict(enumerate(before)), streams)
    ended = happened_before(made)
    assert [turn.position for turn in made] == list(range(len(units)))
    assert all(turn.stream < streams for turn in made)
    for turn in made:
        assert before[turn.position] <= ended[turn.position]
        others = [ended[w] | {w} for w in turn.waits]
        for w in turn.waits:
            assert sum(w in o for o in others) == 1, "it follows from another one"


def happened_before(made) -> dict[int, set[int]]:
    """With each call those that have ended when it begins, whatever the timing."""
    ended: dict[int, set[int]] = {}
    tails: dict[int, int] = {}
    for turn in made:
        awaited = [*turn.waits, *([tails[turn.stream]] if turn.stream in tails else [])]
        ended[turn.position] = set().union(*(ended[w] | {w} for w in awaited))
        tails[turn.stream] = turn.position
    return ended


def test_blocks_of_an_arena_are_its_members():
    """Without an arena each buffer is a block of its own."""
    a, b = Buffer((4,), float32), Buffer((4,), float32)
    binder, shown = Binder(), a.view((2,))
    assert [binder.blocks()(x) for x in (shown, b)] == [(a,), (b,)]
    base = binder.side_by_side([a, b], [0, 256], 272)
    assert base is not None
    assert [[*binder.blocks()(x)] for x in (base, base.view((1,)), shown)] == [[a, b], [a, b], [a]]


def test_what_frees_memory_runs_first():
    """x -> h -> big; `sum` reads big and leaves little: it runs before the next big one is made."""
    units = [Unit({0}, {1}), Unit({0}, {2}), Unit({1}, {3}), Unit({2}, {4})]
    sizes = {1: 100, 2: 100, 3: 1, 4: 1}
    order = greedy(mattering(units, sizes), dependencies(units), sizes, given=(), kept=(3, 4))
    assert order == [0, 2, 1, 3]


def test_a_lane_of_its_own_only_for_what_waits_for_neither():
    def streams(*units):
        made = assigned(range(len(units)), dict(enumerate(dependencies(units))))
        return [(turn.stream, turn.waits) for turn in made]

    chain = [Unit({0}, {1}), Unit({1}, {2}), Unit({2}, {3})]
    assert streams(*chain) == [(0, []), (0, []), (0, [])]
    fork = [Unit({0}, {1}), Unit({1}, {2}), Unit({1}, {3}), Unit({2, 3}, {4})]
    assert streams(*fork) == [(0, []), (0, []), (1, [0]), (1, [1])]
    apart = [Unit({0}, {1}), Unit({0}, {2}), Unit({1}, {3}), Unit({2}, {4})]
    assert streams(*apart) == [(0, []), (1, []), (0, []), (1, [])]


def test_bytes_of_several_blocks_are_waited_for():
    """b and c lie where a lay; d where the end of b and the beginning of c did."""
    units = [Unit(set(), {0}), Unit(set(), {1}), Unit(set(), {2}), Unit(set(), {3})]
    places = {0: (0, 100), 1: (0, 40), 2: (60, 100), 3: (30, 70)}
    assert waits(range(4), units, places) == {0: set(), 1: {0}, 2: {0}, 3: {0, 1, 2}}


# whole programs


def small_training(**sizes) -> tuple[Program, dict[str, TensorType]]:
    main, startup = Program("net"), Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x = mg.static.data("x", [None, 64])
        h = x
        for n in (96, 96, 8):
            h = mg.nn.functional.relu(mg.nn.Linear(h.shape[-1], n)(h))
        mg.optimizer.SGD(0.1).minimize(mg.mean(h))
    return main, {"x": TensorType((32, 64), float32)}


def bound_of(case, **options):
    types = {n: TensorType(np.shape(a), np.asarray(a).dtype) for n, a in case.feeds.items()}
    return bind_program(case.program, types, case.fetches, options=RunOptions(**options))


class Conflict(AssertionError):
    """Two calls that may run at the same time, or a value that was overwritten before it was read."""


def check_memory(bound) -> int:
    """No value of a BoundProgram is overwritten too early; how many pairs of calls may run at the same time."""
    base = {id(b): o for b, o in bound.offsets}
    units, blocks = bound.units
    lies = {n: root_and_offset(b) for n, b in blocks.items()}  # members of a bucket lie within it
    starts = {n: base[id(root)] + at for n, (root, at) in lies.items() if id(root) in base}
    place = {n: (start, start + blocks[n].nbytes) for n, start in starts.items()}
    fed, fetched = (
        {n for n, b in blocks.items() if id(b) in {id(bound.buffers[i]) for i in some}}
        for some in (bound.schedule.feeds.values(), bound.schedule.fetched)
    )
    check_values(units, bound.order, place, fed, fetched)
    return check_company(units, bound.order, bound.streams(), place)


def pages_of(place):
    """The function from a block to the numbers of the 256 bytes that it takes in the arena."""
    return lambda n: range(place[n][0] // 256, -(-place[n][1] // 256)) if n in place else ()


def check_values(units, order, place, given, kept) -> None:
    """Follow who wrote which bytes of the arena."""
    pages, written_by = pages_of(place), dict[int, int]()  # number of 256 bytes -> block
    for n in given:
        written_by.update(dict.fromkeys(pages(n), n))
    known = set(given)
    for i in order:
        if any(n not in known and pages(n) for n in units[i].reads):
            raise Conflict(f"call {i} reads what nobody has written")
        for n in units[i].blocks & known:
            if any(written_by.get(p) != n for p in pages(n)):
                raise Conflict(f"call {i} finds block {n} overwritten")
        for n in units[i].writes:
            written_by.update(dict.fromkeys(pages(n), n))
            known.add(n)
    for n in kept & known:
        if any(written_by.get(p) != n for p in pages(n)):
            raise Conflict(f"the fetched block {n} is overwritten")


def check_company(units, order, streams, place) -> int:
    """No two calls of which neither waits for the other touch the same bytes, unless both read."""
    pages, ended, company = pages_of(place), happened_before(streams), 0
    for i, j in itertools.combinations(order, 2):
        if i in ended[j]:
            continue
        company += 1
        for a, b in ((i, j), (j, i)):
            for n, m in itertools.product(units[a].writes, units[b].blocks):
                if n == m or set(pages(n)) & set(pages(m)):
                    raise Conflict(f"calls {a} and {b} run together and share block {n}")
    return company


def test_no_race_and_no_early_reuse_in_random_programs():
    company = sum(check_memory(bound_of(random_program(seed))) for seed in range(60))
    assert company > 1000


CHAINS = st.lists(
    st.tuples(st.sets(st.integers(1, 5), min_size=1, max_size=2), st.integers(0, 2)), min_size=8, max_size=24
)


@given(CHAINS)
def test_no_race_and_no_early_reuse_where_blocks_share_a_piece(chain):
    """Each call writes one block and reads some of the latest; as gradients in a bucket, some lie side by side."""
    units = [Unit({i + 1 - back for back in backs if back <= i + 1}, {i + 1}) for i, (backs, _) in enumerate(chain)]
    sizes, pieces, inside = [256 * (1 + n % 3) for n in range(len(units) + 1)], dict[object, int](), []
    for n, nbytes in enumerate(sizes):
        alone = n == 0 or chain[n - 1][1] == 0
        piece = ("alone", n) if alone else (n // 6, chain[n - 1][1])
        at = pieces.setdefault(piece, 0)
        inside.append(([*pieces].index(piece), at))
        pieces[piece] = at + nbytes
    given, kept = {0}, {len(units)}
    asked = placement.Asked(units, range(len(sizes)), inside, 0, given, kept, (), reuse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "apart", list)  # small blocks share memory, too
        made = placement._laid_out(asked, sizes, [*pieces.values()], {}, 0)
    starts = [made.offsets[piece] + at for piece, at in inside]
    place = {n: (start, start + nbytes) for n, (start, nbytes) in enumerate(zip(starts, sizes, strict=True))}
    check_values(units, made.order, place, given, kept)
    check_company(units, made.order, made.streams, place)


def test_small_blocks_need_no_company():
    """What reads nothing but the labels runs beside the products: it shares no memory with their scalars."""
    main, types = small_training()
    bound = bind_program(main, types, [])
    assert {turn.stream for turn in bound.streams()} == {0, 1}


def test_the_last_layers_are_updated_beside_the_product_of_the_first(monkeypatch):
    monkeypatch.setattr(update, "GROUP", 5000)
    main, types = small_training()
    strategy = mg.static.BuildStrategy.all()
    program = mg.static.CompiledProgram(main, build_strategy=strategy).program_for([])
    bound = bind_program(program, types, [], settling=settling(lambda call: Algorithm(0, b"")))
    gradient = next(
        owner(b) for v, b in zip(bound.schedule.values, bound.buffers, strict=True) if v.name == "linear_0.w_0@GRAD"
    )
    calls = bound.binder.calls
    product = next(i for i in bound.order if any(owner(b) is gradient for b in calls[i].buffers()))
    first, second = (i for i in bound.order if getattr(calls[i], "function", "") == "update")
    ended = happened_before(bound.streams())
    assert product in ended[second]
    assert product not in ended[first] and first not in ended[product]


def lives_that_end_early(order, touched):
    return {b: (first, max(first, last - 1)) for b, (first, last) in lives(order, touched).items()}


def backwards(touched, before, *others):
    return list(reversed(range(len(touched))))


def later_than_late(order, units, *others):
    """The fills of a net run after who reads them."""
    return [*order[1:], order[0]]


def one_wait_too_few(order, units, places):
    return {i: set(sorted(found)[:-1]) for i, found in waits(order, units, places).items()}


def no_memory_used_again(order, units, places):
    return waits(order, units, {})


@pytest.mark.parametrize(
    ("module", "name", "planted"),
    [
        (placement, "lives", lives_that_end_early), (placement, "greedy", backwards),
        (placement, "as_late_as_possible", later_than_late),
        (graph_streams, "waits", one_wait_too_few), (graph_streams, "waits", no_memory_used_again),
    ],
)  # fmt: skip
def test_the_check_notices_planted_faults(monkeypatch, module, name, planted):
    falling = itertools.count(0, -1)
    monkeypatch.setattr(placement, "most_needed", lambda *_, **__: next(falling))  # the last order is taken
    monkeypatch.setattr(placement, "apart", list)
    monkeypatch.setattr(module, name, planted)

    def check_all():
        for seed in range(30):
            check_memory(bound_of(random_program(seed)))

    with pytest.raises(Conflict):
        check_all()


def test_updates_run_as_soon_as_their_gradient_is_there():
    main, types = small_training()
    bound = bind_program(main, types, [])
    steps = bound.schedule.steps
    where = {}
    for at, i in enumerate(bound.order):
        for position, span in enumerate(bound.spans):
            if i in span:
                where.setdefault(steps[position].op.type, []).append(at)
    assert min(where["sgd"]) < max(where["matmul_grad"]), "the gradient of the last layer need not wait for the first"


@pytest.mark.parametrize("place", [None, mg.CPUPlace()])
def test_a_report_tells_the_peak_and_what_sharing_saves(place):
    main, _ = small_training()

    def report(**flags):
        strategy = mg.static.BuildStrategy(**flags)
        return mg.static.CompiledProgram(main, build_strategy=strategy).memory_report({"x": [32, 64]}, place=place)

    both, apart, copies = report(), report(memory_optimize=False), report(enable_inplace=False)
    assert both.live <= both.planned < apart.planned
    assert both.planned < both.apart
    if place is None:
        assert copies.apart > both.apart, "an operator that may not overwrite its input has memory of its own"
    else:
        assert copies.planned >= both.planned
    assert apart.saved < both.saved
    text = str(both)
    assert "MiB" in text and both.running[0].type in text and "test_memory.py" in text
    at_peak = sum(rounded(r.nbytes) for r in both.at_peak())
    assert at_peak == both.live
    assert sum(both.by_operator().values()) == sum(r.nbytes for r in both.at_peak())
    assert max(both.by_operator(), key=both.by_operator().get) == next(iter(both.by_operator()))
    assert both.persistable == sum(v.type.nbytes for v in main.vars.values() if v.persistable)


@pytest.mark.parametrize("place", [None, mg.CPUPlace()])
def test_a_report_counts_what_is_written_over_its_input(place):
    main = Program()
    with mg.static.program_guard(main, Program()):
        y = x = mg.static.data("x", [256, 256])
        for _ in range(6):
            y = mg.tanh(mg.nn.functional.relu(y))
        total = mg.sum(y)
    report = mg.static.CompiledProgram(main).memory_report({}, [total], place)
    assert report.live <= report.planned < 3 * x.type.nbytes
    assert report.saved == pytest.approx(11 * x.type.nbytes, rel=0.001), "twelve values lie in one block"
    chain = next(r for r in report.residents if r.op is not None)
    assert chain.name == "relu_0.tmp_0, 10 others, tanh_5.tmp_0" and chain.nbytes == x.type.nbytes


@pytest.mark.parametrize("place", [mg.CUDAPlace(0), mg.CPUPlace()], ids=str)
@pytest.mark.parametrize("flags", [{}, {"enable_inplace": False}, {"memory_optimize": False}], ids=str)
@pytest.mark.parametrize("seeds", graded([range(12), range(12, 40)], now=lambda seeds: 0 in seeds), ids=str)
def test_the_numbers_of_a_report_agree_in_random_programs(place, flags, seeds):
    for seed in seeds:
        case = random_program(seed)
        compiled = mg.static.CompiledProgram(case.program, mg.static.BuildStrategy.all(**flags))
        report = compiled.memory_report(case.feeds, case.fetches, place)
        at_peak = report.at_peak()
        assert report.live == sum(rounded(r.nbytes) for r in at_peak) <= report.planned <= report.apart, seed
        assert sum(report.by_operator().values()) == sum(r.nbytes for r in at_peak), seed
        assert all(0 < r.nbytes <= r.values or not r.nbytes for r in report.residents), seed


def test_a_report_needs_shapes_that_fit():
    main, _ = small_training()
    compiled = mg.static.CompiledProgram(main)
    with pytest.raises(FeedError, match="depends on the shape of x"):
        compiled.memory_report()
    with pytest.raises(FeedError, match="must be"):
        compiled.memory_report({"x": [32, 65]})
    with pytest.raises(FeedError, match="not a data variable"):
        compiled.memory_report({"z": [1]})
    arrays = compiled.memory_report({"x": np.zeros((32, 64), "float32")})
    assert arrays == compiled.memory_report({"x": (32, 64)})


def test_a_report_on_a_cpu_takes_no_memory_for_the_plan():
    """2 PiB are more than any host has addresses for."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x, w = mg.static.data("x", [-1, 1024]), mg.static.create_parameter([1024, 1024], "float32")
        out = mg.nn.functional.softmax(x) @ w
    report = mg.static.CompiledProgram(main).memory_report({"x": [2**39, 1024]}, [out], mg.CPUPlace())
    assert report.planned >= 2**51


def test_a_report_asks_for_no_shape_that_nobody_reads():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        mg.static.data("unread", [None, 3])
        x = mg.static.data("x", [None, 4])
        mg.tanh(x + 1.0)
    compiled = mg.static.CompiledProgram(main)
    before = str(main), main.version
    report = compiled.memory_report({"x": [32, 4]})
    assert report.live == compiled.memory_report({"x": [32, 4], "unread": [7, 3]}).live
    with pytest.raises(FeedError, match="depends on the shape of x"):
        compiled.memory_report({"unread": [7, 3]})
    assert (str(main), main.version) == before


def test_a_program_that_is_changed_after_it_was_compiled_is_refused():
    main, _ = small_training()
    compiled = mg.static.CompiledProgram(main)
    compiled.program_for(())
    with mg.static.program_guard(main, Program()):
        mg.static.data("late", [1])
    with pytest.raises(ProgramError, match="changed after it was compiled"):
        compiled.program_for(())


@pytest.mark.parametrize("flags", [{}, {"enable_inplace": False}, {"memory_optimize": False}])
def test_flags_of_memory_change_no_result_on_the_cpu(flags):
    for seed in range(20):
        case = random_program(seed)
        program = mg.static.CompiledProgram(case.program, build_strategy=mg.static.BuildStrategy(**flags))
        found = []
        for p in (case.program, program):
            scope, exe = mg.static.Scope(), Executor()
            for name, array in case.values.items():
                scope.write(name, array.copy())
            values = [exe.run(p, case.feeds, case.fetches, scope=scope) for _ in range(2)]
            found.append([a.tobytes() for v in values for a in v] + [scope.read(n).tobytes() for n in case.values])
        assert found[0] == found[1], seed


def test_a_state_that_may_not_be_updated_in_place_is_copied_back():
    main, types = small_training()
    counts = [
        len(bind_program(main, types, [], options=RunOptions(inplace=inplace)).results) for inplace in (True, False)
    ]
    assert counts[0] == 0 < counts[1]


def test_small_products_have_room_for_split_sums_and_large_ones_take_no_more_than_32_mib():
    main, types = small_training()
    sizes = [c.workspace.nbytes for c in every_call(bind_program(main, types, []).binder.calls) if isinstance(c, Gemm)]
    assert sizes and max(sizes) == 1 << 20
    program = Program()
    x = program.global_block().create_var("x", [8192, 64], "float32", is_data=True)
    Builder(program.global_block()).matmul(x, x, trans_y=True)
    bound = bind_program(program, {"x": x.type}, [])
    assert [c.workspace.nbytes for c in bound.binder.calls] == [32 << 20]


def test_the_peak_is_the_first_step_with_the_most_bytes(rng):
    assert peak([]) == (0, -1)
    assert peak([Life(0, 2, 3)]) == (0, 2)
    for _ in range(50):
        firsts = rng.integers(-1, 12, 20)
        blocks = [Life(int(n), int(a), int(a + d)) for n, a, d in zip(
            rng.integers(0, 2000, 20), firsts, rng.integers(0, 6, 20), strict=True
        )]  # fmt: skip
        steps = sorted({life.first for life in blocks})
        sums = {t: sum(rounded(n) for n, a, b in blocks if a <= t <= b) for t in steps}
        at = max(sums, key=lambda t: sums[t])
        assert peak(blocks) == (sums[at], at)
