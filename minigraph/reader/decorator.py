"""Readers by Paddle's names: a reader is a function without arguments whose call gives the samples one by one.

    train = mg.batch(mg.reader.shuffle(samples, buf_size=1024), batch_size=32)
    for batch in train():
        exe.run(main, feed=feeder.feed(batch), fetch_list=[loss])
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minigraph.errors import AttrError, MinigraphError, require
from minigraph.errors.kinds import READERS
from minigraph.io.prefetch import copied, mapped, prefetched

Reader = Callable[[], Iterable[Any]]


class ComposeNotAligned(MinigraphError, ValueError):
    """Readers that `compose` joins have different numbers of samples."""

    code = READERS.code


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """A reader of lists of `batch_size` samples; the last one may be shorter unless drop_last."""
    size = _size("batch_size", batch_size)

    def batches() -> Iterator[list[Any]]:
        samples = iter(reader())
        while chosen := list(itertools.islice(samples, size)):
            if len(chosen) == size or not drop_last:
                yield chosen

    return batches


def cache(reader: Reader) -> Reader:
    """A reader that asks `reader` once, now, and keeps all samples."""
    samples = tuple(reader())
    return lambda: iter(samples)


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of func(sample of each reader), as long as the shortest."""
    return lambda: map(func, *(reader() for reader in readers))


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader that takes `buf_size` samples at a time and gives them in an order drawn by Python's `random`."""
    size = _size("buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while chosen := list(itertools.islice(samples, size)):
            random.shuffle(chosen)
            yield from chosen

    return shuffled


def chain(*readers: Reader) -> Reader:
    """A reader of all samples of the first reader, then of the second, and so on."""
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """A reader of tuples: (1, 2) and 3 become (1, 2, 3).

    check_alignment  a ComposeNotAligned where one reader ends before another; False stops at the shortest
    """
    missing = object()

    def composed() -> Iterator[tuple[Any, ...]]:
        samples = [reader() for reader in readers]
        padded = itertools.zip_longest(*samples, fillvalue=missing)
        for row in padded if check_alignment else zip(*samples, strict=False):
            if any(part is missing for part in row):
                raise ComposeNotAligned("outputs of readers are not aligned: one has fewer samples than another")
            yield tuple(itertools.chain.from_iterable(p if isinstance(p, tuple) else (p,) for p in row))

    return composed


def buffered(reader: Reader, size: int) -> Reader:
    """A reader whose samples a thread reads ahead, `size` of them."""
    ahead = _size("size", size)
    return lambda: prefetched(lambda: map(copied, reader()), ahead)


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first `n` samples."""
    return lambda: itertools.islice(reader(), n)


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """A reader of mapper(sample), computed by `process_num` threads, up to `buffer_size` samples ahead.

    order  says nothing here: samples keep their order
    """
    threads, ahead = _size("process_num", process_num), _size("buffer_size", buffer_size)
    return lambda: mapped(mapper, map(copied, reader()), threads, ahead)


def _size(name: str, value: Any) -> int:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and int(value) > 0
    require(fits, f"{name} must be an int > 0, is {value!r}", AttrError)
    return int(value)
