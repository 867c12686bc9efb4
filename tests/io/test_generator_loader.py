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
    with pytest.raises(ProgramError, match="a loader inside the program is not here"):
        base.io.DataLoader.from_generator(feed_list=[x], iterable=False)
    with pytest.raises(AttrError, match="feed_list is needed"):
        base.io.PyReader()
    with pytest.raises(ProgramError, match="the loader has no generator yet"):
        list(base.io.PyReader([x])())
    loader = base.io.PyReader([x])
    loader.decorate_batch_generator(lambda: iter([[np.zeros((1, 2)), 1]]))
    with pytest.raises(AttrError, match="a batch has 2 parts, feed_list 1"):
        list(loader())
