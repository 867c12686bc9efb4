"""Paddle's `base.io`: loaders of older scripts, which are made first and get their generator later.

    loader = base.io.DataLoader.from_generator(feed_list=[image, label], capacity=16)
    loader.set_sample_generator(samples, batch_size=32)
    for feed in loader():
        exe.run(feed=feed, fetch_list=[loss])

One with iterable=False stands inside the program, whose runs take its batches:

    loader = base.io.DataLoader.from_generator(feed_list=[image, label], iterable=False)
    loader.set_batch_generator(batches)
    loader.start()
    try:
        while True:
            exe.run(fetch_list=[loss])
    except base.core.EOFException:
        loader.reset()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from minigraph.errors import AttrError, MinigraphError, ProgramError, call_site, require
from minigraph.errors.kinds import MISSING, ORDER
from minigraph.io import DataLoader as Loader
from minigraph.io.feeder import SamplePart, in_type_of
from minigraph.io.prefetch import prefetched
from minigraph.program import Variable
from minigraph.reader.decorator import batch

Generator = Callable[[], Iterable[Any]]


class EOFException(MinigraphError, EOFError):
    """A loader inside a program has no batch left for a run; its reset() and start() begin again."""


class GeneratorLoader:
    """Batches of a generator, read by a thread ahead; `for feed in loader():` gives lists of one feed for a run.

    feed_list    Variables of the parts of a sample
    capacity     batches that are read ahead
    return_list  lists of arrays in place of feeds
    iterable     False: it stands inside the program of its variables, whose runs take a batch each after start(), but
                 for those that feed them all
    use_double_buffer, use_multiprocess and drop_last say nothing here: a thread reads ahead.
    """

    def __init__(
        self, feed_list: Sequence[Variable] | None = None, capacity: int | None = None, use_double_buffer: bool = True,
        iterable: bool = True, return_list: bool = False, use_multiprocess: bool = False, drop_last: bool = True,
    ) -> None:  # fmt: skip
        fits = feed_list or (return_list and iterable)
        require(fits, "feed_list is needed: the feeds have the names of its variables", MISSING)
        self.feeds = list(feed_list or ())
        self.capacity, self.return_list = capacity or 2, return_list
        self._batches: Generator | None = None
        self._reading: Iterator[Any] | None = None  # since start()
        self.iterable = bool(iterable)
        if not iterable:
            self.return_list = False
            self.feeds[0].program.loaders.append(self)

    def set_sample_generator(
        self, reader: Generator, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> Self:
        """`reader()` gives samples: an array, or one for each variable."""
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last))

    def set_sample_list_generator(self, reader: Generator, places: Any = None) -> Self:
        """`reader()` gives lists of samples."""
        return self.set_batch_generator(lambda: ([*map(_stacked, zip(*map(_parts, s), strict=True))] for s in reader()))

    def set_batch_generator(self, reader: Generator, places: Any = None) -> Self:
        """`reader()` gives batches: an array for each variable."""
        self._batches = reader
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_batch_generator = set_batch_generator

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches
        if batches is None:
            raise ORDER(
                "the loader has no generator yet", call="DataLoader", site=call_site(),
                hint="call set_sample_generator, set_sample_list_generator or set_batch_generator first",
            )  # fmt: skip
        # the thread must not keep the program, which keeps this loader, which keeps the thread
        made = partial(_made, [SamplePart.of(v) for v in self.feeds], self.return_list)
        yield from prefetched(lambda: map(made, batches()), self.capacity)

    __call__ = __iter__

    def start(self) -> None:
        """The next run of the program takes the first batch."""
        self._inside("start")
        require(self._reading is None, "start is called a second time", ProgramError, "call reset first")
        self._reading = iter(self)

    def reset(self) -> None:
        """No run takes a batch until the next start()."""
        self._inside("reset")
        self._reading = None

    def next_feed(self) -> dict[str, np.ndarray]:
        """The feed of a run; EOFException where there is none left."""
        if self._reading is None:
            names = ", ".join(v.name for v in self.feeds)
            raise ProgramError(
                f"the loader of {names} was not started", call="Executor.run", site=call_site(),
                hint="loader.start() before the runs of an epoch, or feed them",
            )  # fmt: skip
        try:
            return next(self._reading)[0]
        except StopIteration:
            hint = "loader.reset() and loader.start() begin the next epoch"
            raise EOFException("the loader has no batch left", site=call_site(), hint=hint) from None

    def _inside(self, call: str) -> None:
        require(not self.iterable, f"{call} is for loaders inside a program, iterable=False", ProgramError,
                "for feed in loader(): exe.run(feed=feed, fetch_list=[...])")  # fmt: skip


class LoaderOfScripts(Loader):
    """io.DataLoader, and the loaders that get their generator later."""

    @staticmethod
    def from_generator(*args: Any, **kwargs: Any) -> GeneratorLoader:
        """A loader without a generator yet, with the arguments of GeneratorLoader."""
        return GeneratorLoader(*args, **kwargs)


DataLoader = LoaderOfScripts  # as Paddle calls it


class PyReader(GeneratorLoader):
    """The oldest of these loaders: decorate_sample_generator and its like give it a generator."""


def _made(feeds: Sequence[SamplePart], return_list: bool, parts: Any) -> Any:
    """A batch as a list of arrays, or a list of one feed."""
    given = _parts(parts)
    arrays = [_fitted(feeds[i], part) if i < len(feeds) else np.array(part) for i, part in enumerate(given)]
    if return_list:
        return arrays
    require(len(arrays) == len(feeds), f"a batch has {len(arrays)} parts, feed_list {len(feeds)}", AttrError)
    return [{v.name: array for v, array in zip(feeds, arrays, strict=True)}]


def _fitted(v: SamplePart, part: Any) -> np.ndarray:
    """A copy of a part, whose array the generator may fill anew, in its variable's type and rank.

    Samples of [1] may be numbers.
    """
    array = in_type_of(v, part)
    return array[..., None] if array.ndim == v.type.ndim - 1 and v.type.shape[-1] == 1 else array


def _parts(sample: Any) -> Sequence[Any]:
    return sample if isinstance(sample, (list, tuple)) else [sample]


def _stacked(values: Sequence[Any]) -> np.ndarray:
    return np.stack([np.asarray(v) for v in values])


__all__ = ["DataLoader", "EOFException", "GeneratorLoader", "PyReader"]
