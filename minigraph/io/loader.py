"""DataLoader: batches of a data set as arrays, read by threads ahead of the program that uses them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.program import Variable

from .dataset import IterableDataset
from .prefetch import mapped, prefetched
from .sampler import BatchSampler

_here = threading.local()


class WorkerInfo(NamedTuple):
    """Which thread of a DataLoader asks: its number, how many there are, the data set."""

    id: int
    num_workers: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """The WorkerInfo of the thread that calls; None outside of a loader's threads."""
    return getattr(_here, "info", None)


def default_collate(samples: Sequence[Any]) -> Any:
    """Samples as one batch: arrays and numbers are stacked, tuples and dicts position by position, texts listed."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: default_collate([s[key] for s in samples]) for key in first}
    if isinstance(first, (list, tuple)):
        same = all(len(s) == len(first) for s in samples)
        require(same, f"samples of one batch have {sorted({len(s) for s in samples})} parts", AttrError)
        return [default_collate(part) for part in zip(*samples, strict=True)]
    if isinstance(first, (str, bytes)):
        return list(samples)
    return np.stack([np.asarray(s) for s in samples])


class DataLoader:
    """`for batch in DataLoader(dataset, batch_size=32)`: lists of arrays; with return_list=False feeds for a run.

    feed_list      Variables (or names) of the parts of a sample, needed for return_list=False
    places         says nothing here: feeds are copied by the run
    batch_sampler  lists of sample numbers, in place of batch_size, shuffle and drop_last
    batch_size     None gives the samples themselves
    num_workers    threads that read batches; 0 reads them in one thread ahead, or with use_buffer_reader=False in yours
    prefetch_factor  batches that each thread reads ahead
    timeout        seconds after which a batch of a thread that is not there is a TimeoutError; 0 waits
    worker_init_fn called with its number in each thread before its first batch
    use_shared_memory, persistent_workers  say nothing here: threads share their memory
    A data set that is iterable is read by one thread.
    """

    def __init__(
        self, dataset: Any, feed_list: Sequence[Any] | None = None, places: Any = None, return_list: bool = True,
        batch_sampler: Any = None, batch_size: int | None = 1, shuffle: bool = False, drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None, num_workers: int = 0, use_buffer_reader: bool = True,
        prefetch_factor: int = 2, use_shared_memory: bool = True, timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None, persistent_workers: bool = False,
    ) -> None:  # fmt: skip
        self.dataset, self.return_list, self.collate_fn = dataset, return_list, collate_fn
        self.names = [v.name if isinstance(v, Variable) else str(v) for v in feed_list or ()]
        require(return_list or self.names, "return_list=False needs feed_list, whose names the feeds have", AttrError)
        for name, value in (("num_workers", num_workers), ("timeout", timeout)):
            require(isinstance(value, (int, float)) and value >= 0, f"{name} must be >= 0, is {value!r}", AttrError)
        fits = isinstance(prefetch_factor, int) and prefetch_factor > 0
        require(fits, f"prefetch_factor must be an int > 0, is {prefetch_factor!r}", AttrError)
        self.num_workers, self.timeout, self.ahead = int(num_workers), timeout or None, prefetch_factor
        self.use_buffer_reader, self.worker_init_fn = use_buffer_reader, worker_init_fn
        self.iterable = isinstance(dataset, IterableDataset)
        own = batch_sampler is not None
        mixed = own and (batch_size != 1 or shuffle or drop_last)
        require(not mixed, "batch_sampler stands in place of batch_size, shuffle and drop_last", AttrError)
        require(not (self.iterable and (own or shuffle)), "an iterable data set has an order of its own", AttrError)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.batch_sampler = batch_sampler
        if not own and batch_size is not None and not self.iterable:
            self.batch_sampler = BatchSampler(dataset, None, shuffle, batch_size, drop_last)

    def __len__(self) -> int:
        require(not self.iterable, "a loader of an iterable data set has no length", AttrError)
        return len(self.dataset) if self.batch_sampler is None else len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers and not self.iterable:
            yield from mapped(self._batch, self._numbers(), self.num_workers, self.num_workers * self.ahead,
                              self._begin(), self.timeout)  # fmt: skip
        elif self.use_buffer_reader:
            yield from prefetched(self._batches, self.ahead)
        else:
            yield from self._batches()

    __call__ = __iter__

    def _numbers(self) -> Iterator[Any]:
        return iter(range(len(self.dataset)) if self.batch_sampler is None else self.batch_sampler)

    def _begin(self) -> Callable[[], None]:
        counter = itertools.count()

        def begin() -> None:
            _here.info = WorkerInfo(next(counter), self.num_workers, self.dataset)
            if self.worker_init_fn is not None:
                self.worker_init_fn(_here.info.id)

        return begin

    def _batch(self, numbers: Any) -> Any:
        """The batch of these sample numbers, or the sample of one."""
        if self.batch_sampler is None:
            return self._named((self.collate_fn or _as_arrays)(self.dataset[numbers]))
        return self._named((self.collate_fn or default_collate)([self.dataset[i] for i in numbers]))

    def _batches(self) -> Iterator[Any]:
        if not self.iterable:
            yield from map(self._batch, self._numbers())
            return
        samples = iter(self.dataset)
        if self.batch_size is None:
            yield from (self._named((self.collate_fn or _as_arrays)(s)) for s in samples)
            return
        while chosen := list(itertools.islice(samples, self.batch_size)):
            if len(chosen) == self.batch_size or not self.drop_last:
                yield self._named((self.collate_fn or default_collate)(chosen))

    def _named(self, batch: Any) -> Any:
        """A batch as `return_list` wants it: a list, or a list of one feed as Paddle gives it."""
        if self.return_list:
            return batch if isinstance(batch, (list, tuple, dict)) or self.batch_size is None else [batch]
        parts = batch if isinstance(batch, (list, tuple)) else [batch]
        fits = len(parts) == len(self.names)
        require(fits, f"a batch has {len(parts)} parts, feed_list has {len(self.names)}", AttrError)
        return [dict(zip(self.names, parts, strict=True))]


def _as_arrays(sample: Any) -> Any:
    return [np.asarray(part) for part in sample] if isinstance(sample, (list, tuple)) else np.asarray(sample)
