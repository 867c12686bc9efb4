"""DataFeeder: rows of samples as the feed of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import CallSite, FeedError, require
from minigraph.errors.kinds import FEED_SHAPE, FEED_TYPE
from minigraph.program import Program, Variable, default_main_program
from minigraph.types import FLOATS, NO_ARRAY, TensorType, in_type, why_no_array


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


class SamplePart(NamedTuple):
    """What a part of a sample is for: a variable, as a thread may know it that must not keep the program."""

    name: str
    type: TensorType
    site: CallSite | None

    @classmethod
    def of(cls, v: Variable) -> SamplePart:
        return cls(v.name, v.type, v.site)

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def in_type_of(v: Variable | SamplePart, samples: Any) -> np.ndarray:
    """The numbers of samples as a new array of their variable's type; what that cannot hold is refused."""
    try:
        array = np.asarray(samples)
    except NO_ARRAY as problem:
        raise FeedError(f"samples of {v} are {why_no_array(samples, problem)}", site=v.site) from None
    dtype = v.type.dtype
    typed = in_type(array, dtype) if array.dtype.kind in "biuf" or array.dtype in FLOATS else None
    if typed is None:
        raise FEED_TYPE(f"samples of {v} have values that {dtype} cannot hold", site=v.site)
    return typed


def _column(v: Variable, column: list[Any]) -> np.ndarray:
    array = in_type_of(v, column)
    inner = v.shape[1:]
    if array.shape[1:] != inner and -1 not in inner:
        fits = array.size == len(column) * int(np.prod(inner))
        require(fits, f"samples of {v} have the shape {list(array.shape[1:])}", FEED_SHAPE)
        array = array.reshape(len(column), *inner)
    return array
