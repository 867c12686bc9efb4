"""Captured steps on a stub of the GPU: graphs, feeds, counters, bindings. Real kernels' text, run on the CPU."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import minigraph as mg
from minigraph import cuda
from minigraph.errors import KernelError, ProgramError
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda import feed as feed_cuda
from minigraph.runtime.cuda import pinned, staging
from minigraph.runtime.cuda import plan as plan_cuda
from minigraph.runtime.executor import Executor
from tests.gpu.capture import COLUMNS, Case, same, trace
from tests.support import gpu_stub
from tests.support.in_threads import in_threads

pytestmark = pytest.mark.usefixtures("stub")


def gpu() -> Executor:
    return Executor(mg.CUDAPlace(0))


def test_a_captured_plan_is_bit_equal_to_an_eager_one_and_near_the_cpu(stub):
    case = Case()
    scopes = case.scope(), case.scope(), case.scope()
    captured = trace(case, case.program, gpu(), scopes[0], 5)
    assert len(stub.captures) == 1, "the second run captures, the others launch"
    eager = trace(case, case.compiled(allow_cuda_graph_capture=False), gpu(), scopes[1], 5)
    assert len(stub.captures) == 1
    assert same(captured, eager)
    assert scopes[0].read("w").tobytes() == scopes[1].read("w").tobytes()
    cpu = trace(case, case.program, Executor(), scopes[2], 5)
    for a, b in zip(captured, cpu, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_calls_that_wait_for_neither_run_beside_each_other(stub):
    case = Case()
    trace(case, case.program, gpu(), case.scope(), 2)
    (parts,) = stub.captures
    assert {part.lane for part in parts} == {0, 1}
    assert any(part.waits for part in parts)


def test_without_fetches_nothing_waits(stub, monkeypatch):
    case, exe, scope = Case(), gpu(), None
    scope = case.scope()
    exe.run(case.program, case.feed(0), scope=scope)
    waits = []
    monkeypatch.setattr(gpu_stub.Stream, "synchronize", lambda self: waits.append(self))
    for i in range(4):
        exe.run(case.program, case.feed(i), scope=scope)
    assert not waits
    exe.run(case.program, case.feed(0), [case.total], scope=scope)
    assert waits


class LateRuntime(gpu_stub.StubRuntime):
    """A GPU that does nothing before somebody waits: what the host overwrites too early is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list = []
        self.stream = LateStream(self)

    def work(self, until: int | None = None) -> None:
        """Do what was queued, up to the first `until` entries."""
        self.queue, now = (self.queue[until:] if until is not None else []), self.queue[:until]
        for job in now:
            job()

    def runnable(self, binder, tf32):
        steps = super().runnable(binder, tf32)
        for step in steps:
            step.run = partial(self.queue_job, step.run)
        return steps

    def queue_job(self, job) -> None:
        self.queue.append(job)

    def send(self, address, host, nbytes):
        self.queue_job(partial(super().send, address, host, nbytes))

    def receive(self, host, address, nbytes):
        self.queue_job(partial(super().receive, host, address, nbytes))

    def upload(self, array, buffer):
        self.queue_job(partial(super().upload, np.array(array), buffer))

    def download(self, buffer, host):
        self.queue_job(partial(super().download, buffer, host))

    def fetch(self, buffer, as_numpy):
        copy = self.empty(buffer.shape, buffer.dtype)
        self.download(buffer, copy.host)
        return copy.host if as_numpy else copy

    def event(self):
        return LateEvent(self)


class LateStream(gpu_stub.Stream):
    def __init__(self, runtime) -> None:
        self.runtime = runtime

    def synchronize(self) -> None:
        self.runtime.work()


class LateEvent(gpu_stub.Event):
    def __init__(self, runtime) -> None:
        self.runtime, self.happened = runtime, True

    def record(self, stream) -> None:
        self.happened = False
        self.runtime.queue_job(partial(setattr, self, "happened", True))

    def synchronize(self) -> None:
        while not self.happened:
            self.runtime.work(1)


def run_late(monkeypatch, case, slots, rows=(4,)) -> list:
    """Many runs on so many rows in turn, on a GPU that works when it must."""
    late = LateRuntime()
    monkeypatch.setattr(cuda, "runtime", lambda place: late)
    monkeypatch.setattr(pinned, "SLOTS", slots)
    exe, scope = gpu(), case.scope()
    for i in range(3 * slots):
        feed = case.feed(i, rows[i % len(rows)])
        exe.run(case.program, feed, scope=scope)
        feed["x"][...] = np.nan  # a run has taken its feeds when it returns
    return exe.run(case.program, case.feed(6), [case.total, case.w], scope=scope)


@pytest.mark.parametrize("small", [0, staging.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("slots", [2, 3 * pinned.SHARES + 2])
def test_a_feed_is_taken_when_run_returns_and_not_overwritten_while_it_is_copied(monkeypatch, slots, small):
    monkeypatch.setattr(staging, "SMALL", small)
    case = Case(drops=small > 0)  # without random numbers no counter is sent, and only feeds wait
    exe, scope = gpu(), case.scope()
    for i in range(3 * slots):
        exe.run(case.program, case.feed(i), scope=scope)
    expected = exe.run(case.program, case.feed(6), [case.total, case.w], scope=scope)
    assert same([run_late(monkeypatch, case, slots)], [expected])


@pytest.mark.parametrize("small", [0, staging.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("slots", [2, 3 * pinned.SHARES + 2])
def test_the_late_gpu_notices_a_missing_wait(monkeypatch, slots, small):
    monkeypatch.setattr(staging, "SMALL", small)
    case = Case(drops=small > 0)  # without random numbers no counter is sent, and only feeds wait
    expected = run_late(monkeypatch, case, slots)
    monkeypatch.setattr(LateEvent, "synchronize", lambda self: None)
    assert not same([run_late(monkeypatch, case, slots)], [expected])


@pytest.mark.parametrize("small", [0, staging.SMALL], ids=["large", "small"])
def test_plans_for_many_shapes_take_their_turns_of_one_staging_memory(monkeypatch, small):
    monkeypatch.setattr(staging, "SMALL", small)
    case, rows = Case(drops=small > 0), (4, 5, 40, 6, 7)
    exe, scope = gpu(), case.scope()
    for i in range(9):
        exe.run(case.program, case.feed(i, rows[i % 5]), scope=scope)
    expected = exe.run(case.program, case.feed(6), [case.total, case.w], scope=scope)
    assert same([run_late(monkeypatch, case, 3, rows)], [expected])
    monkeypatch.setattr(LateEvent, "synchronize", lambda self: None)
    assert not same([run_late(monkeypatch, case, 3, rows)], [expected])


@pytest.mark.parametrize("lies", ["C", "F"])
def test_a_feed_that_threads_copy_together_arrives_whole(stub, monkeypatch, lies):
    monkeypatch.setattr(staging, "SMALL", 0)
    case = Case(drops=False)
    fed = [{name: np.array(x, order=lies) for name, x in case.feed(i, 40).items()} for i in range(6)]
    expected = [gpu().run(case.program, feed, [case.total, case.x_grad], scope=case.scope()) for feed in fed]
    monkeypatch.setattr(feed_cuda, "SHARED", 0)
    monkeypatch.setattr(feed_cuda, "PIECE", 192)
    exe = gpu()
    assert same([exe.run(case.program, feed, [case.total, case.x_grad], scope=case.scope()) for feed in fed], expected)


def test_of_a_ring_all_but_one_group_may_be_on_their_way(stub):
    """Nothing that is in use comes again, and few uses ask the driver."""
    done, given, asked = 0, 0, []

    class Event:
        when = 0

        def record(self, stream):
            self.when = given
            asked.append("record")

        def synchronize(self):
            nonlocal done
            asked.append("wait")
            done = max(done, self.when)

    stub.event = Event
    ring = pinned.Ring(list(range(pinned.SLOTS)), stub)
    latest = dict.fromkeys(ring.things, 0)
    for _ in range(5 * pinned.SLOTS):
        thing = ring.next()
        assert latest[thing] <= done, "the GPU is done with it"
        given += 1
        latest[thing] = given
        assert given - done <= pinned.SLOTS
        assert done == 0 or given - done > 64 - 1, "no wait for the latest 64"
    assert len(asked) == 2 * 5 * pinned.SHARES


def test_arrays_that_are_read_where_they_lie_live_until_they_have_been_read(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    shown = [{n: stub.to_device(x) for n, x in case.feed(0).items()} for _ in range(2)]
    alive = [weakref.ref(feed["x"]) for feed in shown]
    for i in range(4 * feed_cuda.OFTEN):
        exe.run(case.program, shown[i % 2], scope=scope)
    first = shown.pop(0)
    del first, i
    for _ in range(pinned.SLOTS - pinned.SLOTS // pinned.SHARES):
        assert alive[0]() is not None
        exe.run(case.program, shown[0], scope=scope)
    for _ in range(pinned.SLOTS):
        exe.run(case.program, shown[0], scope=scope)
    assert alive[0]() is None
    assert alive[1]() is not None


def test_what_the_host_takes_part_in_is_not_captured_and_explain_says_so(stub, capsys):
    case = Case(shows=True)
    compiled, scope, exe = case.compiled(), case.scope(), gpu()
    for i in range(3):
        exe.run(compiled, case.feed(i), [case.total], scope=scope)
    assert not stub.captures
    assert "no CUDA graph" in compiled.explain() and "print" in compiled.explain()
    assert capsys.readouterr().out.count("[") >= 3


def test_a_new_scope_is_bound_anew_and_a_known_one_is_not(stub):
    case, exe = Case(), gpu()
    scopes = [case.scope() for _ in range(2)]
    alone = [trace(case, case.program, gpu(), case.scope(), 4) for _ in range(2)]
    stub.captures.clear()
    turns = [[], []]
    for i in range(4):
        for scope, found in zip(scopes, turns, strict=True):
            found.append(exe.run(case.program, case.feed(i), [case.total, case.x_grad], scope=scope))
    assert same(turns[0], alone[0]) and same(turns[1], alone[1])
    assert len(stub.captures) == 2, "one graph for each scope, kept while they take turns"


def test_a_value_set_between_captured_runs_is_used(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    twin_exe, twin = Executor(), case_scope()
    for i in range(6):
        if i == 3:
            for s in (scope, twin):
                s.find_var("w").get_tensor().set(np.full((COLUMNS, COLUMNS), 0.25, "float32"))
        found, expected = (
            e.run(case.program, case.feed(i), [case.total], scope=s)[0] for e, s in ((exe, scope), (twin_exe, twin))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def case_scope() -> Scope:
    return Case().scope()


def test_a_rate_is_written_once_for_each_change(stub, monkeypatch):
    case, exe, scope = Case(), gpu(), case_scope()
    written = []
    real = gpu_stub.StubRuntime.send

    def send(self, address, host, nbytes):
        real(self, address, host, nbytes)
        if "rate" in scope.arrays and address == scope.arrays["rate"].data.ptr:
            written.append(float(scope.arrays["rate"].host[0]))

    monkeypatch.setattr(gpu_stub.StubRuntime, "send", send)
    rates = [0.5, 0.5, 0.25, 0.25, 0.5]
    case.program.lr_schedulers.append((case.rate, lambda: rates[0]))
    for _ in range(5):
        exe.run(case.program, case.feed(0), scope=scope)
        rates.append(rates.pop(0))
    assert written == [0.5, 0.25, 0.5]  # the first run takes it along with the array, the second writes it
    assert scope.read("rate") == 0.5
    scope.fill("rate", 0.125)
    assert scope.read("rate") == 0.125
    assert written[-1] == 0.5, "nothing is written before the next run"


def test_a_rate_that_a_program_writes_is_written_again(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    other = Program()
    rate = other.global_block().create_var("rate", [1], "float32", persistable=True)
    Builder(other.global_block()).fill_constant(shape=[1], value=7.0, dtype="float32", out={"Out": rate})
    case.program.lr_schedulers.append((case.rate, lambda: 0.5))
    for program, feed in ((case.program, case.feed(0)), (other, {}), (case.program, case.feed(1))):
        exe.run(program, feed, scope=scope)
    assert scope.read("rate") == 0.5


def test_a_run_that_failed_is_repeated_with_the_same_random_numbers(stub):
    case, scope = Case(), case_scope()
    exe, cpu, twin = gpu(), Executor(), case_scope()
    bad = case.feed(1)
    bad["ids"][0] = COLUMNS
    for e, s in ((exe, scope), (cpu, twin)):
        e.run(case.program, case.feed(0), [case.total], scope=s)
        before = s.steps[case.program.origin]
        with pytest.raises(KernelError, match="out of range"):
            e.run(case.program, bad, [case.total], scope=s)
        assert s.steps[case.program.origin] == before == 1


def test_captured_runs_report_faults_and_go_on(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    bad = case.feed(1)
    bad["ids"][2] = -COLUMNS - 1
    trace(case, case.program, exe, scope, 3)
    for _ in range(2):
        with pytest.raises(KernelError, match="row 2"):
            exe.run(case.program, bad, [case.total, case.x_grad], scope=scope)
        trace(case, case.program, exe, scope, 1)


def test_arrays_of_the_gpu_are_fed_without_the_host(stub, monkeypatch):
    case, exe, scope = Case(), gpu(), case_scope()
    expected = trace(case, case.program, gpu(), case_scope(), 3)
    sent = []
    real = gpu_stub.StubRuntime.send
    monkeypatch.setattr(
        gpu_stub.StubRuntime, "send", lambda self, a, host, n: (sent.append(n), real(self, a, host, n))
    )
    found = []
    for i in range(3):
        feed = {name: stub.to_device(x) for name, x in case.feed(i).items()}
        found.append(exe.run(case.program, feed, [case.total, case.x_grad], scope=scope))
    assert same(found, expected)
    (plan,) = exe._plans.values()
    assert set(sent) <= {plan.bound.staging.sent}, "only the counter of the run"


def test_arrays_that_come_often_are_read_where_they_lie(stub, monkeypatch):
    case, exe, scope = Case(), gpu(), case_scope()
    runs = 4 * feed_cuda.OFTEN
    expected = trace(case, case.program, gpu(), case_scope(), runs)
    shown = [{n: stub.to_device(x) for n, x in case.feed(0).items()} for _ in range(2)]  # as a loader with two buffers
    taken, real = [], gpu_stub.StubRuntime.take
    monkeypatch.setattr(
        gpu_stub.StubRuntime, "take", lambda self, arrays: (taken.append(len(arrays)), real(self, arrays))
    )
    found = []
    for i in range(runs):
        for name, x in case.feed(i).items():
            shown[i % 2][name].host[...] = x
        found.append(exe.run(case.program, shown[i % 2], [case.total, case.x_grad], scope=scope))
        for name, x in case.feed(i).items():
            assert np.array_equal(shown[i % 2][name].host, x), "a run does not write over its feeds"
    assert same(found, expected)
    assert taken == [2] * (2 * (feed_cuda.OFTEN - 1))
    (plan,) = exe._plans.values()
    assert [binding.launch is not None for binding in plan.bindings.values()] == [True] * 3


def test_arrays_that_lie_elsewhere_each_time_are_copied(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    runs = feed_cuda.PLACES_SEEN + 5
    expected = trace(case, case.program, gpu(), case_scope(), runs)
    fed = [{n: stub.to_device(x) for n, x in case.feed(i).items()} for i in range(runs)]
    found = [exe.run(case.program, feed, [case.total, case.x_grad], scope=scope) for feed in fed]
    assert same(found, expected)
    (plan,) = exe._plans.values()
    assert len(plan.bindings) == 1
    assert len(plan.feeding.seen) == feed_cuda.PLACES_SEEN


def test_an_array_that_takes_the_number_of_one_that_died_is_looked_at_anew(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    fed = [{n: stub.to_device(x) for n, x in case.feed(i).items()} for i in range(2)]
    exe.run(case.program, fed[0], scope=scope)
    (plan,) = exe._plans.values()
    first, second = (plan.feeding.places(feed) for feed in fed)
    for name, array in fed[1].items():
        plan.feeding.known[id(array)] = plan.feeding.known.pop(id(fed[0][name]))
    assert plan.feeding.places(fed[1]) == second != first


def test_only_so_many_places_have_a_binding(stub, monkeypatch):
    monkeypatch.setattr(plan_cuda, "PLACES_KEPT", 2)
    case, exe, scope = Case(), gpu(), case_scope()
    fed = [{n: stub.to_device(x) for n, x in case.feed(i).items()} for i in range(4)]
    runs = 4 * 3 * feed_cuda.OFTEN
    found = []
    for i in range(runs):
        found.append(exe.run(case.program, fed[i % 4], [case.total, case.x_grad], scope=scope))
        for j, feed in enumerate(fed):  # what is copied goes into the plan's memory, whatever was bound before
            assert all(np.array_equal(feed[n].host, x) for n, x in case.feed(j).items())
    other, untouched = gpu(), case_scope()
    wanted = [case.total, case.x_grad]
    expected = [other.run(case.program, case.feed(i % 4), wanted, scope=untouched) for i in range(runs)]
    assert same(found, expected)
    (plan,) = exe._plans.values()
    assert sum(any(places) for _, places in plan.bindings) == 2


def test_feeds_of_the_host_reach_the_plan_after_those_of_the_gpu(stub, monkeypatch):
    monkeypatch.setattr(staging, "SMALL", 0)  # no feed travels in the staging buffer
    case, exe, scope, other, untouched = Case(), gpu(), case_scope(), gpu(), case_scope()
    shown = {n: stub.to_device(x) for n, x in case.feed(0).items()}
    for i in range(3 * feed_cuda.OFTEN):
        on_gpu = i < 2 * feed_cuda.OFTEN
        fed = case.feed(0 if on_gpu else i)
        found = exe.run(case.program, shown if on_gpu else fed, [case.total, case.x_grad], scope=scope)
        assert same([found], [other.run(case.program, fed, [case.total, case.x_grad], scope=untouched)])
    assert all(np.array_equal(shown[n].host, x) for n, x in case.feed(0).items())


def test_a_fetched_parameter_is_that_of_the_scope_of_the_run(stub):
    case, exe = Case(), gpu()
    scopes = case_scope(), case_scope()
    scopes[1].write("w", scopes[1].read("w") + 1)
    for i in range(6):
        scope = scopes[i % 2]
        (w,) = exe.run(case.program, case.feed(i), [case.w], scope=scope)
        assert np.array_equal(w, scope.read("w"))


def test_no_kernel_writes_over_a_feed(stub):
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = mg.static.data("x", [40, 30])
        total = mg.sum(mg.exp(x) * 2.0)  # exp may write over what nobody reads later
    host = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    shown = {"x": stub.to_device(host)}
    exe, scope = gpu(), Scope()
    found = [exe.run(program, shown, [total], scope=scope)[0] for _ in range(2 * feed_cuda.OFTEN)]
    np.testing.assert_allclose(found, 2 * np.exp(host.astype(float)).sum(), rtol=1e-5)
    assert np.array_equal(shown["x"].host, host)


def test_a_fetched_feed_is_copied(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    shown = {n: stub.to_device(x) for n, x in case.feed(0).items()}
    for _ in range(2 * feed_cuda.OFTEN):
        x, _ = exe.run(case.program, shown, ["x", case.total], scope=scope)
        assert np.array_equal(x, case.feed(0)["x"])
    (plan,) = exe._plans.values()
    assert plan.feeding.movable == {"x": False, "ids": True}


def test_a_shape_that_comes_again_runs_as_it_was_captured(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    for _ in range(3):
        for rows in range(1, 30):
            exe.run(case.program, case.feed(0, rows), [case.total], scope=scope)
    assert len(exe._plans) == 29 and all(plan.binding.launch is not None for plan in exe._plans.values())
    assert len(exe.backend.shared.pinned.rings) < 6, "one for each power of two"


def test_plans_of_one_executor_share_their_arena(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    alone = {rows: gpu().run(case.program, case.feed(0, rows), [case.x_grad], scope=case_scope())[0] for rows in (4, 3)}
    for rows in (4, 3):
        scope = case_scope()
        for _ in range(3):
            scope = case_scope()
            found = exe.run(case.program, case.feed(0, rows), [case.x_grad], scope=scope)[0]
            assert found.tobytes() == alone[rows].tobytes()
    assert len({id(plan.arena) for plan in exe._plans.values()}) == 1 < len(exe._plans)


def test_threads_that_share_an_executor_and_a_scope_run_one_after_the_other(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    other = [Case() for _ in range(2)]
    in_threads(
        lambda c: [exe.run(c.program, c.feed(0), [c.total], scope=scope) for _ in range(10)], (case, case, *other)
    )
    assert [scope.steps[c.program.origin] for c in (case, *other)] == [20, 10, 10]


class OwnedRuntime(gpu_stub.StubRuntime):
    """One of two GPUs; nobody may wait for its turn while having that of the other, who might wait for this one."""

    def __init__(self, index, had):
        super().__init__()
        self.device, self.turn, self.had, self.index = replace(self.device, index=index), self, had, index

    def __enter__(self):
        assert self.had in ([], [self.index] * len(self.had)), "two threads could wait for each other"
        self.had.append(self.index)

    def __exit__(self, *_):
        self.had.pop()

    def empty(self, shape, dtype):
        made = super().empty(shape, dtype)
        made.owner = self
        return made

    def to_device(self, array):
        return super().to_device(array if isinstance(array, np.ndarray) else array.get())

    def holds(self, array):
        return getattr(array, "owner", None) is self


@pytest.mark.parametrize("fetches", [False, True])
def test_a_scope_goes_from_gpu_to_gpu(stub, monkeypatch, fetches):
    """With its numbers, its schedule and the faults that nobody looked at."""
    had, case = [], Case()
    runtimes = [OwnedRuntime(i, had) for i in range(2)]
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "runtime", lambda place: runtimes[place.device_id])
    exes, scope, twin = [Executor(mg.CUDAPlace(i)) for i in range(2)], case.scope(), case.scope()
    rates = [0.5, 0.25, 0.25, 0.125, 1.0, 0.0]
    case.program.lr_schedulers.append((case.rate, lambda: rates[0]))
    for i in range(12):
        wanted = [case.total] if fetches or i == 11 else []
        found = exes[i // 2 % 2].run(case.program, case.feed(i), wanted, scope=scope)
        expected = exes[0].run(case.program, case.feed(i), wanted, scope=twin)
        assert same([found], [expected])
        rates.append(rates.pop(0))
    assert scope.read("w").tobytes() == twin.read("w").tobytes()
    bad, other = case.feed(1), Program()
    bad["ids"][2] = COLUMNS
    x = other.global_block().create_var("x", [-1, COLUMNS], "float32", is_data=True)
    total = Builder(other.global_block()).reduce_sum(x)
    for program, wanted in ((case.program, case.total), (other, total)):
        exes[0].run(case.program, bad, scope=scope)
        fed = {name: x for name, x in case.feed(0).items() if name in program.vars}
        with pytest.raises(KernelError, match="row 2"):
            exes[1].run(program, fed, [wanted], scope=scope)
        exes[1].run(program, fed, [wanted], scope=scope)


def test_a_number_that_is_none_fills_nothing(stub):
    case, exe, scope = Case(), gpu(), case_scope()
    rates = [0.5]
    case.program.lr_schedulers.append((case.rate, lambda: rates[0]))
    for _ in range(2):
        exe.run(case.program, case.feed(0), scope=scope)
    rates[0] = np.array([0.1, 0.2])
    with pytest.raises(ProgramError, match="rate is filled with one number, not with array"):
        exe.run(case.program, case.feed(0), scope=scope)
    assert scope.read("rate") == 0.5
    rates[0] = np.full((), 0.25)
    exe.run(case.program, case.feed(0), scope=scope)
    assert scope.read("rate") == 0.25
    rates[0][...] = 0.125
    exe.run(case.program, case.feed(0), scope=scope)
    assert scope.read("rate") == 0.125


def test_executors_of_several_threads_do_not_mix_their_work(stub):
    """Each with a scope of its own, on one GPU: what they compute is what each computes alone."""
    one = Case()
    alone = trace(one, one.program, gpu(), one.scope(), 6)

    def work(_):
        case = Case()
        return trace(case, case.program, gpu(), case.scope(), 6)

    assert all(same(found, alone) for found in in_threads(work, range(4)))


def test_what_depends_on_shapes_only_is_computed_once(stub):
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = mg.static.data("x", [2, 3])
        three = mg.full([2, 3], 3.0)
        noise = Builder(program.global_block()).uniform_random(shape=(2, 3))
        y = mg.exp(three) + x  # exp may write over what it reads, but not over a value that is kept
        total = mg.sum(y * noise)
    exe, scope = gpu(), Scope()
    feed = {"x": np.ones((2, 3), np.float32)}
    runs = [exe.run(program, feed, [y, noise, three, total], scope=scope) for _ in range(4)]
    for found, drawn, *_ in runs:
        np.testing.assert_allclose(found, np.exp(3) + 1, rtol=1e-6)
        assert not np.array_equal(drawn, runs[0][1]) or drawn is runs[0][1], "random numbers are drawn in every run"
    (plan,) = exe._plans.values()
    assert not plan.bound.once, "a fetched value is written in every run"
    runs = [exe.run(program, feed, [y], scope=scope)[0] for _ in range(4)]
    for found in runs:
        np.testing.assert_allclose(found, np.exp(3) + 1, rtol=1e-6)
    plan = list(exe._plans.values())[-1]
    (once,) = plan.bound.once
    assert plan.bound.schedule.steps[0].op.type == "fill_constant"
    assert once in plan.bound.spans[0]
    assert once not in plan.bound.order


def test_a_constant_gradient_in_an_arena_is_written_in_every_run(stub):
    """An arena of gradients lies where other values lie in the same run; a constant that joins it is no longer kept."""
    main, startup = Program(), Program()
    with mg.base.unique_name.guard(), mg.static.program_guard(main, startup):
        a, b = (mg.static.create_parameter([3, 4], "float32", name=name) for name in "ab")
        mg.optimizer.SGD(0.1).minimize(mg.sum(a) + mg.sum(mg.square(b) * mg.static.data("x", [3, 4])))
    strategy = mg.static.BuildStrategy(
        fuse_all_optimizer_ops=True, constant_folding=True, multi_tensor_mode="arena"
    )
    program, found = mg.static.CompiledProgram(main, build_strategy=strategy), []
    for exe in (Executor(), gpu()):
        scope = Scope()
        startup.random_seed = 1
        Executor().run(startup, scope=scope)
        for i in range(4):
            x = np.full((3, 4), i + 0.5, np.float32)
            exe.run(program, {"x": x}, scope=scope)
        found.append([scope.read(name) for name in "ab"])
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
