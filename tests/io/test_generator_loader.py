"""base.io: loaders that get their generator later. tests/paddle/layer_programs.py has their feeds."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from minigraph import base, static
from minigraph.errors import AttrError, FeedError, ProgramError
from tests.support.worker_threads import are_gone, serving


def test_lists_in_place_of_feeds():
    loader = base.io.DataLoader.from_generator(return_list=True)
    loader.set_sample_list_generator(lambda: iter([[(np.arange(2), 1), (np.arange(2), 2)]]))
    ((first, second),) = loader()
    assert (first.tolist(), second.tolist()) == ([[0, 1], [0, 1]], [1, 2])


def test_what_is_not_there_is_said():
    x = static.data("x", [None, 2])
    with pytest.raises(ProgramError, match="start is for loaders inside a program"):
        base.io.PyReader([x]).start()
    with pytest.raises(AttrError, match="feed_list is needed"):
        base.io.PyReader()
    with pytest.raises(ProgramError, match="the loader has no generator yet"):
        list(base.io.PyReader([x])())
    loader = base.io.PyReader([x])
    loader.decorate_batch_generator(lambda: iter([[np.zeros((1, 2)), 1]]))
    with pytest.raises(AttrError, match="a batch has 2 parts, feed_list 1"):
        list(loader())


def epochs(exe, fetched, loader):
    """What the runs of two epochs give."""
    found = []
    for _ in range(2):
        loader.start()
        found += [exe.run(fetch_list=[fetched])[0].tolist() for _ in range(2)]
        with pytest.raises(base.core.EOFException, match="no batch left"):
            exe.run(fetch_list=[fetched])
        loader.reset()
    return found


def test_runs_take_the_batches_of_a_loader_inside_the_program():
    x, y = static.data("x", [None, 2]), static.data("y", [None, 2])
    loader = base.io.DataLoader.from_generator(feed_list=[x], iterable=False)
    loader.set_batch_generator(lambda: iter([[np.full((1, 2), 3)], [np.full((2, 2), 4)]]))
    exe = static.Executor()
    assert epochs(exe, x + 1, loader) == [[[4, 4]], [[5, 5], [5, 5]]] * 2
    total, ones = x + y, np.ones((1, 2), "float32")
    loader.start()
    compiled = static.CompiledProgram(static.default_main_program())
    assert exe.run(compiled, feed={"y": ones}, fetch_list=[total])[0].tolist() == [[4, 4]]
    both = {"x": ones, "y": ones}
    assert exe.run(feed=both, fetch_list=[total])[0].tolist() == [[2, 2]], "fed variables take no batch"
    copy = static.default_main_program().clone(for_test=True)
    assert exe.run(copy, feed={"y": ones}, fetch_list=[total.name])[0].tolist() == [[5, 5], [5, 5]]
    with pytest.raises(ProgramError, match="start is called a second time"):
        loader.start()
    loader.reset()
    with pytest.raises(ProgramError, match="the loader of x was not started"):
        exe.run(fetch_list=[x])


@pytest.mark.parametrize("iterable", [True, False])
def test_a_generator_may_fill_its_arrays_anew(iterable: bool):
    """A thread reads ahead: what waits must not change with what is read after it."""
    x, exe = static.data("x", [None, 2]), static.Executor()
    loader = base.io.DataLoader.from_generator(feed_list=[x], capacity=4, iterable=iterable)
    out, read, seen = x * 2, threading.Event(), []

    def batches():
        array = np.zeros((1, 2), "float32")
        for i in range(4):
            array[...] = i
            yield [array]
        array[...] = -1
        read.set()

    loader.set_batch_generator(batches)
    if iterable:
        for feed in loader():
            assert read.wait(20)
            seen.append(feed[0]["x"].tolist())
        assert seen == [[[i, i]] for i in range(4)]
        return
    loader.start()
    for _ in range(4):
        seen.append(exe.run(fetch_list=[out])[0].tolist())
        assert read.wait(20)
    assert seen == [[[2 * i, 2 * i]] for i in range(4)]


def test_values_that_a_variable_cannot_hold_are_refused():
    label = static.data("label", [None, 1], "int64")
    for values, fits in (([[1.0]], True), ([[0.7]], False), ([[np.nan]], False), ([["a"]], False)):
        loader = base.io.DataLoader.from_generator(feed_list=[label])
        loader.set_batch_generator(lambda values=values: iter([[np.array(values)]]))
        if fits:
            assert next(iter(loader()))[0]["label"].tolist() == [[1]]
        else:
            with pytest.raises(FeedError, match=r"samples of label.*values that int64 cannot hold"):
                list(loader())


def test_a_loader_that_is_dropped_in_the_middle_ends_its_thread(frozen):
    """Its thread kept the program, which kept the loader: 500 of them left 500 threads."""

    def begun() -> set[int]:
        before = serving()
        with static.program_guard(static.Program(), static.Program()):
            x = static.data("x", [None, 2])
            loader = base.io.DataLoader.from_generator(feed_list=[x], iterable=False)
            loader.set_batch_generator(lambda: iter([[np.ones((1, 2))]] * 100))
            loader.start()
            static.Executor().run(fetch_list=[x * 2])
            return serving() - before

    threads = begun()
    assert len(threads) == 1
    assert are_gone(threads, gc.collect)
