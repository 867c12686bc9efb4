"""DataFeeder: rows of samples as the feed of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import FeedError, require
from minigraph.errors.kinds import FEED_SHAPE
from minigraph.program import Program, Variable, default_main_program


class DataFeeder:
    """`feeder.feed([(x, y), (x, y)])` is {name: array with the samples as rows}, of the variables' types.

    feed_list  Variables or names, in the order of the parts of a sample
    place      says nothing here: a run copies its feeds
    program    where names are looked up; the default main program for None
    """

    def __init__(self, feed_list: Sequence[Any], place: Any = None, program: Program | None = None) -> None:
        block = (program if program is not None else default_main_program()).global_block()
        self.variables = [v if isinstance(v, Variable) else block.var(v) for v in feed_list]

    def feed(self, iterable: Any) -> dict[str, np.ndarray]:
        """The feed of these samples; a part may be flat where its variable has more axes."""
        columns: list[list[Any]] = [[] for _ in self.variables]
        for sample in iterable:
            fits = len(sample) == len(columns)
            require(fits, f"a sample has {len(sample)} parts, feed_list has {len(columns)}", FeedError)
            for column, part in zip(columns, sample, strict=True):
                column.append(part)
        return {v.name: _column(v, column) for v, column in zip(self.variables, columns, strict=True)}


def _column(v: Variable, column: list[Any]) -> np.ndarray:
    array = np.array(column, dtype=v.dtype)
    inner = v.shape[1:]
    if array.shape[1:] != inner and -1 not in inner:
        fits = array.size == len(column) * int(np.prod(inner))
        require(fits, f"samples of {v} have the shape {list(array.shape[1:])}", FEED_SHAPE)
        array = array.reshape(len(column), *inner)
    return array
