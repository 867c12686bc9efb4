"""Executor.close() beside runs at several places, and in one of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.runtime.parallel.replicas import Replicas

PLACES = [mg.CPUPlace()] * 2
X = np.ones((4, 3), "float32")


def doubled(function=lambda x: 2 * x):
    """(program at two places, what it gives) with `function` for the numbers of each."""
    main = static.Program()
    with static.program_guard(main):
        x = static.data("x", [None, 3])
        out = main.global_block().create_var(name="out", shape=[None, 3], dtype="float32")
        static.py_func(function, x, out)
    return static.CompiledProgram(main).with_data_parallel(places=PLACES), out


def test_a_run_that_begins_before_a_close_and_meets_behind_it(monkeypatch):
    program, out = doubled()
    exe, run = static.Executor(), Replicas.run
    exe.run(program, {"x": X}, [out])

    def late(*args):
        exe.close()  # as another thread may, between the two
        monkeypatch.setattr(Replicas, "run", run)
        return run(*args)

    monkeypatch.setattr(Replicas, "run", late)
    for _ in range(2):
        np.testing.assert_array_equal(exe.run(program, {"x": X}, [out])[0], 2 * X)


def test_close_waits_for_a_run_that_another_thread_has_begun():
    inside, go_on, closed = threading.Barrier(3), threading.Event(), threading.Event()

    def wait(x):
        inside.wait(60)
        assert go_on.wait(60)
        return 2 * x

    program, out = doubled(wait)
    exe, found = static.Executor(), []
    running = threading.Thread(target=lambda: found.append(exe.run(program, {"x": X}, [out])[0]))
    closing = threading.Thread(target=lambda: (exe.close(), closed.set()))
    running.start()
    inside.wait(60)
    closing.start()
    assert not closed.wait(0.05)
    other = static.Program()
    with static.program_guard(other):
        y = mg.ones([2])
    np.testing.assert_array_equal(exe.run(other, fetch_list=[y])[0], [1, 1])  # nobody holds the Executor meanwhile
    go_on.set()
    running.join()
    closing.join()
    np.testing.assert_array_equal(found[0], 2 * X)


def test_a_function_inside_a_run_cannot_close_its_executor():
    exe, main_thread = static.Executor(), threading.current_thread()
    program, out = doubled(lambda x: (exe.close() if threading.current_thread() is main_thread else None, x)[1])
    with pytest.raises(ProgramError, match="in the middle of another run"):
        exe.run(program, {"x": X}, [out])
