"""base.io: loaders that get their generator later. tests/paddle/layer_programs.py has their feeds."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph import base, static
from minigraph.errors import AttrError, ProgramError


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
