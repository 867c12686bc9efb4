"""GPU checks of order: callers on streams of all kinds, in threads, on the second GPU while the first is current."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.gpu.capture import Case, same, trace
from tests.gpu.check import Check
from tests.support.in_threads import in_threads

SIZE, ROUNDS, CYCLES = 1 << 16, 12, 4_000_000  # a kernel that does nothing for 2 ms: what does not wait for it shows
SPIN = 'extern "C" __global__ void spin(long long n) { for (long long s = clock64(); clock64() - s < n;); }'


class Sums:
    """A program that adds up all elements of what it is fed, over its runs."""

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")
        self.program = Program()
        block = self.program.global_block()
        g = Builder(block)
        x = block.create_var("x", [SIZE], "float32", is_data=True)
        self.twice = g.elementwise_add(x, x)
        total = block.create_var("total", [1], "float64", persistable=True)
        summed = g.reshape(g.cast(g.reduce_sum(x), dtype="float64"), shape=[1])
        g.elementwise_add(total, summed, out={"Out": total})
        self.exe, self.scope, self.expected = Executor(mg.CUDAPlace(0)), Scope(), 0.0
        self.scope.write("total", np.zeros(1))
        self.spin = self.cupy.RawKernel(SPIN, "spin")
        self.lock = threading.Lock()

    def run(self, x: Any, value: int) -> None:
        """A run on the current stream, which is busy before x is written and before it is written again."""
        with self.lock:
            self.spin((1,), (1,), (CYCLES,))
            x.fill(value)
            self.exe.run(self.program, {"x": x}, scope=self.scope)
            x.fill(-1)
            self.expected += value * SIZE

    def right(self) -> bool:
        return float(self.scope.read("total")[0]) == self.expected

    def callers(self) -> list[AbstractContextManager[Any]]:
        """Streams that a caller may use: of CuPy, of somebody else, of its thread, and none."""
        stream = self.cupy.cuda.Stream
        kept = [stream(non_blocking=True), stream()]
        foreign = self.foreign = stream(non_blocking=True)
        other = stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, self.foreign.ptr)))
        return [nullcontext(), *kept, self.cupy.cuda.ExternalStream(foreign.ptr), other, stream.ptds]


def checks() -> Iterator[Check]:
    for run in CASES:
        yield Check(f"streams/{run.__name__}", run, sanitize=run in SANITIZED)


def callers_of_all_kinds_in_turns() -> None:
    assert _in_turns(), "a run took a feed before it was written, or after it was overwritten"


def a_missing_wait_is_noticed() -> None:
    """The check above can fail."""
    turn = mg.cuda.runtime(mg.CUDAPlace(0)).turn
    turn._after = lambda later, earlier: None
    try:
        assert not _in_turns()
    finally:
        importlib.import_module("cupy").cuda.Device().synchronize()
        del turn._after


def _in_turns() -> bool:
    sums = Sums()
    fed = [sums.cupy.zeros(SIZE, np.float32) for _ in sums.callers()]
    sums.cupy.cuda.Device().synchronize()
    for i, (caller, x) in enumerate(ROUNDS * list(zip(sums.callers(), fed, strict=True))):
        with caller:
            sums.run(x, i % 7 + 1)
    return sums.right()


def callers_in_threads() -> None:
    """Each with a stream of its own, of one executor and scope."""
    sums = Sums()

    def work(caller: AbstractContextManager[Any]) -> None:
        with caller:
            x = sums.cupy.zeros(SIZE, np.float32)
            for i in range(ROUNDS):
                sums.run(x, i % 5 + 1)

    in_threads(work, (*sums.callers(), sums.cupy.cuda.Stream.ptds))
    assert sums.right()


def streams_that_are_gone() -> None:
    sums = Sums()
    for i in range(3 * ROUNDS):
        with sums.cupy.cuda.Stream(non_blocking=bool(i % 2)):
            sums.run(sums.cupy.zeros(SIZE, np.float32), i % 3 + 1)
    for i in range(ROUNDS):
        foreign = sums.cupy.cuda.Stream(non_blocking=True)
        with sums.cupy.cuda.ExternalStream(foreign.ptr):
            sums.run(sums.cupy.zeros(SIZE, np.float32), i % 3 + 1)
        del foreign
    assert sums.right()


def a_stream_in_use_stays_current() -> None:
    """`stream.use()` holds through first runs, which take memory, as through later ones."""
    cupy = importlib.import_module("cupy")
    before, mine = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    try:
        mine.use()
        sums = Sums()
        x = cupy.zeros(SIZE, np.float32)
        for i in range(ROUNDS):
            sums.run(x, i)
            assert cupy.cuda.get_current_stream() is mine, f"run {i} left another stream current"
        assert sums.right()
    finally:
        before.use()


def values_that_stay_on_the_gpu_are_the_callers() -> None:
    """What is made of a fetched value is right, though its memory serves the next run at once."""
    sums = Sums()
    for caller in sums.callers():
        with caller:
            x, made = sums.cupy.zeros(SIZE, np.float32), []
            for i in range(ROUNDS):
                x.fill(i)
                (twice,) = sums.exe.run(sums.program, {"x": x}, [sums.twice], scope=sums.scope, return_numpy=False)
                sums.spin((1,), (1,), (CYCLES,))
                made.append(twice + 1)
                del twice
            assert [float(m[-1]) for m in made] == [2 * i + 1 for i in range(ROUNDS)]


def memory_of_fetched_values_goes_back_to_its_stream() -> None:
    """What is read on one stream is not given to a run on another."""
    sums = Sums()
    cupy, (s1, s2) = sums.cupy, (sums.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(SIZE, np.float32)

    def fetched(value: int) -> Any:
        x.fill(value)
        return sums.exe.run(sums.program, {"x": x}, [sums.twice], scope=sums.scope, return_numpy=False)[0]

    cupy.cuda.Device().synchronize()
    for i in range(ROUNDS):
        with s1:
            a = fetched(i)
        with s2:
            b = fetched(i)
        with s1:
            sums.spin((1,), (1,), (CYCLES,))
            y = a + 1
            del a
        with s2:
            c = fetched(i + 100)
        assert float(y[-1]) == 2 * i + 1 and float(b[-1]) == 2 * i and float(c[-1]) == 2 * i + 200


def memory_that_is_freed_in_the_order_of_a_stream() -> None:
    """CuPy's asynchronous pool: an arena that is dropped while its run has not begun is not given away."""
    sums = Sums()
    cupy, turn = sums.cupy, mg.cuda.runtime(mg.CUDAPlace(0)).turn
    before, pool = cupy.cuda.get_allocator(), cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    try:
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        x = cupy.zeros(SIZE, np.float32)
        cupy.cuda.Device().synchronize()
        for i in range(ROUNDS):
            with streams[0]:
                sums.run(x, i)
                nbytes = next(iter(sums.exe._plans.values())).arena.nbytes
                sums.exe.close()
            with streams[1]:
                taken = [cupy.full(nbytes, 7, np.uint8) for _ in range(4)]
            cupy.cuda.Device().synchronize()
            assert all(bool((t == 7).all()) for t in taken)
            assert sums.right()
        assert turn.stream is turn.own
    finally:
        cupy.cuda.set_allocator(before)
        turn._keeps = True


def the_second_gpu_while_the_first_is_current() -> None:
    """Where there is a second one: the same bits, host and GPU feeds, a scope that moves; the first stays current."""
    if mg.cuda.device_count() < 2:
        return
    cupy, second = importlib.import_module("cupy"), mg.CUDAPlace(1)
    case = Case()
    expected = trace(case, case.program, Executor(mg.CUDAPlace(0)), Case().scope(), 6)
    scope, exe, found = Case().scope(), Executor(second), []
    wanted = [case.total, case.x_grad]
    for i in range(6):
        fed = case.feed(i)
        if i % 2:
            with cupy.cuda.Device(1):
                fed = {name: cupy.asarray(x) for name, x in fed.items()}
        found.append(exe.run(case.program, fed, wanted, scope=scope))
        assert cupy.cuda.runtime.getDevice() == 0
    assert same(found, expected)
    for i, place in enumerate((mg.CUDAPlace(0), second) * 2):
        twin = _twin(case, scope)
        one, other = (
            Executor(p).run(case.program, case.feed(i), wanted, scope=s) for p, s in ((place, scope), (second, twin))
        )
        assert same([one], [other])
    rates = [0.5, 0.25]
    case.program.lr_schedulers.append((case.rate, lambda: rates[0]))
    for i in range(4):
        exe.run(case.program, case.feed(i), scope=scope)
        assert float(scope.read("rate")[0]) == rates[0]
        rates.append(rates.pop(0))


def _twin(case: Case, scope: Scope) -> Scope:
    """A scope with the same values, of as many runs."""
    made = Scope()
    for name in scope.list_names():
        made.write(name, scope.read(name))
    made.steps[case.program.origin] = scope.steps[case.program.origin]
    return made


CASES = [
    callers_of_all_kinds_in_turns, a_missing_wait_is_noticed, callers_in_threads, a_stream_in_use_stays_current,
    streams_that_are_gone,
    values_that_stay_on_the_gpu_are_the_callers, memory_of_fetched_values_goes_back_to_its_stream,
    memory_that_is_freed_in_the_order_of_a_stream, the_second_gpu_while_the_first_is_current,
]  # fmt: skip
SANITIZED = [callers_of_all_kinds_in_turns]
