"""Threads that build and run programs at once: guards hold for the thread that entered them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.base import unique_name
from minigraph.errors import ProgramError

PAIRS, STEPS = 60, 3


def meet(barrier: threading.Barrier | None) -> None:
    if barrier is not None:
        barrier.wait(timeout=60)


@contextmanager
def inside(guard: AbstractContextManager[Any], barrier: threading.Barrier | None) -> Iterator[None]:
    """The guard; two threads enter, go on and leave in step, so that each sees the other's guard everywhere."""
    meet(barrier)
    with guard:
        meet(barrier)
        yield
        meet(barrier)
    meet(barrier)


def trained(kind: int, barrier: threading.Barrier | None = None) -> tuple[Any, ...]:
    """Texts, losses and weights of one of two nets, built and trained under every guard there is."""
    mg.seed(kind + 7)
    mg.set_default_dtype(("float32", "float64")[kind])
    main, startup, scope = static.Program(f"net{kind}"), static.Program("startup"), static.Scope()
    with (
        inside(unique_name.guard(f"net{kind}_"), barrier), inside(static.program_guard(main, startup), barrier),
        inside(static.scope_guard(scope), barrier),
    ):  # fmt: skip
        x = static.data("x", [None, 4], mg.get_default_dtype())
        h = x
        for width in ((8,), (5, 6))[kind]:
            with inside(static.name_scope(f"block{kind}"), barrier):
                h = mg.tanh(nn.Linear(h.shape[-1], width)(h))
            if kind == 0:  # as many meetings as the other one
                with inside(static.name_scope("again"), barrier):
                    h = nn.Dropout(0.5)(h)
        loss = mg.mean(nn.Linear(h.shape[-1], 1)(h) ** 2)
        optimizer = (mg.optimizer.SGD(0.1), mg.optimizer.Adam(0.01))[kind]
        optimizer.minimize(loss)
        meet(barrier)
        exe = static.Executor()
        exe.run(startup)
        feed = {"x": np.random.default_rng(kind).normal(size=(3, 4)).astype(mg.get_default_dtype())}
        losses = []
        for _ in range(STEPS):
            meet(barrier)
            losses.append(exe.run(feed=feed, fetch_list=[loss])[0].tobytes())
        weights = {name: a.tobytes() for name, a in main.state_dict().items()}
    assert [o.scope_name for o in main.ops if o.type == "tanh"] == [f"block{kind}/"] * (kind + 1)
    return str(main), str(startup), tuple(losses), weights, mg.get_default_dtype()


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=120)


def test_pairs_of_threads_build_and_train_as_each_does_alone():
    alone = [in_thread(lambda kind=kind: trained(kind)) for kind in (0, 1)]
    assert alone[0][2] != alone[1][2] and "net0_net0_linear_0.w_0" in alone[0][3]
    for pair in range(PAIRS):
        barrier = threading.Barrier(2)

        def both(kind: int, barrier: threading.Barrier = barrier) -> tuple[Any, ...]:
            try:
                return trained(kind, barrier)
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(both if pair % 4 else trained, (0, 1)))  # every fourth pair as it comes
        assert found == alone


GUARDS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Any]]] = {
    "program": (
        lambda: static.program_guard(static.Program(), static.Program()),
        lambda: (static.default_main_program(), static.default_startup_program()),
    ),
    "scope": (lambda: static.scope_guard(static.Scope()), static.global_scope),
    "name_scope": (lambda: static.name_scope("a"), lambda: static.default_main_program().scope_name),
    "unique_name": (lambda: unique_name.guard("new_"), lambda: unique_name.generate("x")[:4] == "new_"),
}  # fmt: skip


@pytest.mark.parametrize("kind", GUARDS)
def test_a_new_thread_starts_with_the_defaults(kind: str):
    guard, seen = GUARDS[kind]
    everywhere = in_thread(seen)
    with guard():
        assert seen() != everywhere
        assert in_thread(seen) == everywhere


@pytest.mark.parametrize("kind", GUARDS)
def test_guards_of_generators_that_take_turns_end_in_any_order(kind: str):
    guard, seen = GUARDS[kind]

    def held() -> Iterator[Any]:
        with guard():
            yield seen()

    outside = seen()
    first, second = held(), held()
    next(first)
    inner = next(second)
    first.close()  # before the one that was entered in it
    assert kind in ("unique_name", "name_scope") or seen() == inner
    assert kind != "name_scope" or seen() == "a/"
    second.close()
    assert seen() == outside


@pytest.mark.parametrize("kind", GUARDS)
def test_a_guard_that_another_thread_closes_ends_where_it_was_entered(kind: str):
    guard, seen = GUARDS[kind]

    def held() -> Iterator[None]:
        with guard():
            yield

    outside, generator = seen(), held()
    next(generator)
    in_thread(generator.close)
    assert seen() == outside


@pytest.mark.parametrize("kind", GUARDS)
def test_a_guard_that_a_copied_context_closes_ends_where_it_was_entered(kind: str):
    """As a task does that closes what the task around it began."""
    guard, seen = GUARDS[kind]

    def held() -> Iterator[None]:
        with guard():
            yield

    async def closed_by_a_task() -> Any:
        async def close() -> None:
            generator.close()

        generator = held()
        next(generator)
        await asyncio.create_task(close())
        return seen()

    outside, generator, other = seen(), held(), copy_context()
    next(generator)
    copy_context().run(generator.close)
    assert seen() == outside
    generator = held()
    other.run(next, generator)
    generator.close()  # entered in the copy, closed here
    assert (seen(), other.run(seen)) == (outside, outside)
    assert asyncio.run(closed_by_a_task()) == outside


@pytest.mark.parametrize("kind", GUARDS)
def test_a_task_that_was_begun_in_a_guard_keeps_it(kind: str):
    guard, seen = GUARDS[kind]

    async def later() -> Any:
        await asyncio.sleep(0)
        return seen()

    async def begun() -> bool:
        outside = seen()
        with guard():
            task = asyncio.create_task(later())
        return seen() == outside != await task

    assert asyncio.run(begun())


def test_a_profiler_that_a_copied_context_closes_ends_where_it_was_entered():
    main, startup, scope, exe = static.Program(), static.Program(), static.Scope(), static.Executor()
    with static.program_guard(main, startup):
        mg.tanh(static.data("x", [2]))
    profiler = mg.profiler.Profiler()
    profiler.__enter__()
    copy_context().run(profiler.__exit__)
    exe.run(main, {"x": np.zeros(2, "float32")}, scope=scope)
    assert not profiler.runs


def test_tasks_have_guards_of_their_own():
    async def built(name: str, turns: int) -> str:
        program = static.Program()
        with static.program_guard(program, static.Program()), unique_name.guard(), static.name_scope(name):
            x = static.data("x", [2, 3])
            for _ in range(turns):
                await asyncio.sleep(0)
                x = mg.tanh(x)
        assert [o.scope_name for o in program.ops] == [f"{name}/"] * turns
        return "\n".join(str(program).splitlines()[1:])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(built("n", turns) for turns in (5, 2, 4)))

    before = static.default_main_program()
    together = asyncio.run(all_of_them())
    assert together == [asyncio.run(built("n", turns)) for turns in (5, 2, 4)]
    assert static.default_main_program() is before


def test_an_exception_ends_a_guard():
    before = static.default_main_program()
    with contextlib.suppress(KeyError), static.program_guard(static.Program()):
        raise KeyError
    assert static.default_main_program() is before


def test_settings_of_a_thread_are_its_own():
    settings = (
        (mg.set_default_dtype, mg.get_default_dtype, "float64"),
        (mg.set_float32_matmul_precision, mg.get_float32_matmul_precision, "high"),
    )
    for change, seen, other in settings:
        before = seen()

        def changed(change: Any = change, seen: Any = seen, other: Any = other) -> Any:
            change(other)
            return seen()

        assert in_thread(changed) == other
        assert seen() == before
        change(other)
        try:
            assert in_thread(seen) == other  # the main thread sets it for the process
        finally:
            change(before)


def test_threads_without_guards_get_names_that_occur_once():
    def names() -> list[str]:
        return [unique_name.generate("thread") for _ in range(2000)]

    with ThreadPoolExecutor(4) as pool:
        found = [name for part in pool.map(lambda _: names(), range(4)) for name in part]
    assert len(set(found)) == len(found) == 8000


def test_who_holds_a_scope_may_run_programs_in_it():
    """A run takes the lock of its scope first: it would else wait for this thread, and this thread for it."""
    main, scope, exe = static.Program(), static.Scope(), static.Executor()
    with static.program_guard(main):
        mg.zeros([1])
    with scope.lock:
        other = threading.Thread(target=exe.run, args=(main,), kwargs={"scope": scope})
        other.start()
        other.join(0.3)
        free = exe._lock.acquire(blocking=False)
        if free:
            exe.run(main, scope=scope)
            exe._lock.release()
    other.join()
    assert free


def test_a_thread_gets_what_it_compiled_whatever_others_compile_meanwhile():
    """At each line another thread comes between and compiles for other fetches."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        weight = static.nn.fc(static.data("x", [2, 3]), 3)
        loss = mg.mean(weight * weight)
        mg.optimizer.SGD(0.1).minimize(loss)
    compiled, lines = static.CompiledProgram(main), set[int]()
    watched = type(compiled._made).one_for.__code__
    alone = len(compiled.program_for([loss.name], True).ops), len(compiled.program_for([loss.name]).ops)
    compiled.program_for([weight.name], True)

    def between(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is not watched:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
            in_thread(lambda: compiled.program_for([weight.name], True))
        return between

    kept = sys.gettrace()
    sys.settrace(between)
    try:
        found = len(compiled.program_for([loss.name]).ops)
    finally:
        sys.settrace(kept)
    assert len(lines) > 4
    assert found == alone[1]


@pytest.mark.parametrize("how", ["clone", "print", "list", "compile"])
def test_a_program_to_which_another_thread_adds_can_be_read(how: str, monkeypatch: pytest.MonkeyPatch):
    """Whoever reads it sees what was there, and nobody runs it; each look at a variable lets the other thread add one.
    """
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2, 3])
        out = mg.tanh(static.nn.fc(x, 3))
    block, look = main.global_block(), type(x).__getattribute__

    def adding(variable: Any, name: str) -> Any:
        if name in ("persistable", "is_data", "stop_gradient", "__class__") and len(main.vars) < 40:
            block.create_var(name=f"later_{len(main.vars)}", shape=[2], dtype="float32")
        return look(variable, name)

    monkeypatch.setattr(type(x), "__getattribute__", adding)
    if how == "clone":
        seen = str(main.clone(for_test=True))
    elif how == "print":
        seen = str(main)
    elif how == "list":
        seen = str([*main.all_parameters(), *main.state_dict(scope=static.Scope()), out])
    else:  # what would run may be half of what is built
        with pytest.raises(ProgramError, match="was changed after it was compiled"):
            static.CompiledProgram(main, static.BuildStrategy.all()).program_for([out.name])
        seen = "tanh"
    monkeypatch.undo()
    assert "tanh" in seen
