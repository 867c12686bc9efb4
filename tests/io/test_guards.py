"""What the threads of loaders call sees the guards and settings of who iterates."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from minigraph import base, io, reader, static
from tests.support.worker_threads import are_gone, serving


class Teacher:
    """Gives what its program computes in the scope that is global where it is asked."""

    def __init__(self) -> None:
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        with static.program_guard(self.main, startup), static.scope_guard(self.scope):
            self.out = static.nn.fc(static.data("x", [1, 2]), 3)
            static.Executor().run(startup)

    def __call__(self, number: int) -> np.ndarray:
        return static.Executor().run(feed={"x": np.full((1, 2), number, "float32")}, fetch_list=[self.out])[0]

    def all(self) -> Iterator[np.ndarray]:
        return map(self, range(4))


class Mapped(io.Dataset):
    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> np.ndarray:
        return self.teacher(number)


def generated(teacher: Teacher) -> Iterable[Any]:
    loader = base.io.DataLoader.from_generator(return_list=True)
    return loader.set_batch_generator(lambda: ([a] for a in teacher.all()))()


LOADERS: dict[str, Callable[[Teacher], Iterable[Any]]] = {
    "one thread": lambda teacher: io.DataLoader(Mapped(teacher), batch_size=None),
    "two threads": lambda teacher: io.DataLoader(Mapped(teacher), batch_size=None, num_workers=2),
    "from_generator": generated,
    "buffered": lambda teacher: reader.buffered(teacher.all, 2)(),
    "xmap_readers": lambda teacher: reader.xmap_readers(teacher, lambda: iter(range(4)), 2, 2)(),
    "both": lambda teacher: reader.buffered(reader.xmap_readers(teacher, lambda: iter(range(4)), 2, 2), 2)(),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_network_that_a_loader_runs(kind: str):
    teacher = Teacher()
    with static.program_guard(teacher.main), static.scope_guard(teacher.scope):
        found = [np.asarray(batch).reshape(3).tolist() for batch in LOADERS[kind](teacher)]
        assert found == [teacher(number).reshape(3).tolist() for number in range(4)]


def test_what_worker_init_fn_enters_holds_for_its_thread():
    teacher, seen, kept = Teacher(), list[bool](), list[Any]()

    class Asks(Mapped):
        def __getitem__(self, number: int) -> np.ndarray:
            seen.append(static.global_scope() is teacher.scope)
            return np.zeros(1)

    def begin(number: int) -> None:
        kept.append(static.scope_guard(teacher.scope))
        kept[-1].__enter__()

    list(io.DataLoader(Asks(teacher), num_workers=2, worker_init_fn=begin))
    assert seen == [True] * 4 and static.global_scope() is not teacher.scope


def test_a_loader_with_threads_of_its_own_that_is_dropped_in_the_middle_ends_them(frozen: None):
    def begun() -> set[int]:
        before = serving()
        with static.program_guard(static.Program(), static.Program()):
            x = static.data("x", [None, 2])
            loader = base.io.DataLoader.from_generator(feed_list=[x], iterable=False)
            rows = reader.xmap_readers(lambda n: [np.full((1, 2), n, "float32")], lambda: iter(range(100)), 2, 2)
            loader.set_batch_generator(rows)
            loader.start()
            for _ in range(6):  # more than are read ahead before the second thread begins
                static.Executor().run(fetch_list=[x * 2])
            for _ in range(6000):  # one that was started may not have come to its work yet
                if len(serving() - before) > 1:
                    break
                time.sleep(0.01)
            return serving() - before

    threads = begun()
    assert len(threads) > 1
    assert are_gone(threads, gc.collect)
