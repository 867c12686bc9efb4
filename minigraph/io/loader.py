"""DataLoader: batches of a data set as arrays, read by threads ahead of the program that uses them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, require, shortened
from minigraph.errors.kinds import CONFLICT, MISSING
from minigraph.program import Variable

from .dataset import IterableDataset
from .distributed_sampler import DistributedBatchSampler
from .prefetch import copied, mapped, prefetched
from .sampler import BatchSampler, EpochSampler, RandomSampler, SequenceSampler

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
    seed           the orders of shuffle are those of this seed, another one in each iteration; Python's `random` draws
                   them for None
    A data set that is iterable is read by one thread. A run copies its feeds into pinned memory where a GPU is used.
    `state_dict()` says which batch comes next, whatever threads have read ahead; with it `load_state_dict()` lets the
    next iteration go on there.
    """

    def __init__(
        self, dataset: Any, feed_list: Sequence[Any] | None = None, places: Any = None, return_list: bool = True,
        batch_sampler: Any = None, batch_size: int | None = 1, shuffle: bool = False, drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None, num_workers: int = 0, use_buffer_reader: bool = True,
        prefetch_factor: int = 2, use_shared_memory: bool = True, timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None, persistent_workers: bool = False, *,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        self.dataset, self.return_list, self.collate_fn = dataset, return_list, collate_fn
        self.names = [v.name if isinstance(v, Variable) else str(v) for v in feed_list or ()]
        require(return_list or self.names, "return_list=False needs feed_list, whose names the feeds have", MISSING)
        for name, value in (("num_workers", num_workers), ("timeout", timeout)):
            require(isinstance(value, (int, float)) and value >= 0, f"{name} must be >= 0, is {value!r}", AttrError)
        fits = isinstance(prefetch_factor, int) and prefetch_factor > 0
        require(fits, f"prefetch_factor must be an int > 0, is {prefetch_factor!r}", AttrError)
        self.num_workers, self.timeout, self.ahead = int(num_workers), timeout or None, prefetch_factor
        self.use_buffer_reader, self.worker_init_fn = use_buffer_reader, worker_init_fn
        self.iterable = isinstance(dataset, IterableDataset)
        own = batch_sampler is not None
        mixed = own and (batch_size != 1 or shuffle or drop_last)
        require(not mixed, "batch_sampler stands in place of batch_size, shuffle and drop_last", CONFLICT)
        require(not (self.iterable and (own or shuffle)), "an iterable data set has an order of its own", CONFLICT)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.batch_sampler = batch_sampler
        require(seed is None or shuffle, "a seed is for shuffle=True", CONFLICT)
        self._order = EpochSampler(dataset, seed) if seed is not None else None
        self.sampler: Any = None
        if not own and not self.iterable:
            self.sampler = self._order or (RandomSampler(dataset) if shuffle else SequenceSampler(dataset))
            if batch_size is not None:
                self.batch_sampler = BatchSampler(sampler=self.sampler, batch_size=batch_size, drop_last=drop_last)
        self._draws = getattr(self.sampler or batch_sampler, "draws", False)
        self._ranks = batch_sampler if isinstance(batch_sampler, DistributedBatchSampler) else None
        self._next = {"epoch": 0, "batch": 0}
        self._resumed = True  # whether the next iteration begins at _next, not at the epoch behind it

    def __len__(self) -> int:
        require(not self.iterable, "a loader of an iterable data set has no length", AttrError)
        return len(self.dataset) if self.batch_sampler is None else len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            self._next = {"epoch": self._next["epoch"] + 1, "batch": 0}
        self._resumed = False
        at = self._next
        if self._order is not None:
            self._order.epoch = at["epoch"]
        if self._ranks is not None:
            at["sampler_epoch"] = self._ranks.epoch
        source = self._read(at["batch"])
        try:
            for batch in source:
                at["batch"] += 1
                yield batch
        finally:
            source.close()
        if at is self._next:
            self._next, self._resumed = {"epoch": at["epoch"] + 1, "batch": 0}, True

    __call__ = __iter__

    def state_dict(self) -> dict[str, int]:
        """Which batch comes next: {"epoch": iterations before this one, "batch": batches of it, "seed": ...}.

        It is that of the latest iteration. "sampler_epoch" is the epoch of a DistributedBatchSampler. An order that
        Python's `random` drew is refused: nobody can find it again.
        """
        require(
            not self._draws, "the order of this loader was drawn by Python's random, it has no state", AttrError,
            "DataLoader(..., shuffle=True, seed=7)",
        )  # fmt: skip
        state = dict(self._next) | ({} if self._order is None else {"seed": self._order.seed})
        if self._ranks is not None and self._resumed:  # what set_epoch says holds until an iteration begins
            state["sampler_epoch"] = self._ranks.epoch
        return state

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration begin with the batch that a `state_dict()` of such a loader names."""
        known = self.state_dict()
        fits = isinstance(state, Mapping) and state.keys() == known.keys()
        counts = fits and all(isinstance(n, (int, np.integer)) and n >= 0 for n in state.values())
        require(counts, f"the state is {shortened(repr(state))}, this loader has one like {known}", AttrError)
        same = self._order is None or state["seed"] == self._order.seed
        require(same, f"the state is one of seed {state.get('seed')}, the loader's is {known.get('seed')}", AttrError)
        most = None if self.iterable else len(self)
        inside = most is None or state["batch"] <= most
        require(inside, f"the state names batch {state['batch']}, the loader has {most}", AttrError)
        self._next, self._resumed = {"epoch": int(state["epoch"]), "batch": int(state["batch"])}, True
        if self._ranks is not None:
            self._ranks.set_epoch(int(state["sampler_epoch"]))

    def _read(self, skipped: int) -> Generator[Any, None, None]:
        """The batches but the first ones, which are read only where there is no other way."""
        if self.num_workers and not self.iterable:
            yield from mapped(self._batch, self._numbers(skipped), self.num_workers, self.num_workers * self.ahead,
                              self._begin(), self.timeout)  # fmt: skip
        elif self.use_buffer_reader:
            yield from prefetched(lambda: self._batches(skipped), self.ahead)
        else:
            yield from self._batches(skipped)

    def _numbers(self, skipped: int) -> Iterator[Any]:
        numbers = self.sampler if self.batch_sampler is None else self.batch_sampler
        return itertools.islice(numbers, skipped, None)

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
            return self._put_together(self.dataset[numbers], _as_arrays)
        return self._put_together([self.dataset[i] for i in numbers], default_collate)

    def _batches(self, skipped: int) -> Iterator[Any]:
        if not self.iterable:
            yield from map(self._batch, self._numbers(skipped))
            return
        samples = itertools.islice(self.dataset, skipped * (self.batch_size or 1), None)
        if self.batch_size is None:
            yield from (self._put_together(s, _as_arrays) for s in samples)
            return
        while chosen := list(itertools.islice(samples, self.batch_size)):
            if len(chosen) == self.batch_size or not self.drop_last:
                yield self._put_together(chosen, default_collate)

    def _put_together(self, samples: Any, collate: Callable[[Any], Any]) -> Any:
        """What a run is given for samples; `collate`, where the user has none, copies them."""
        return self._named(collate(samples) if self.collate_fn is None else copied(self.collate_fn(samples)))

    def _named(self, batch: Any) -> Any:
        """A batch as `return_list` wants it: a list, or a list of one feed as Paddle gives it."""
        if self.return_list:
            return batch if isinstance(batch, (list, tuple, dict)) or self.batch_size is None else [batch]
        parts = batch if isinstance(batch, (list, tuple)) else [batch]
        fits = len(parts) == len(self.names)
        require(fits, f"a batch has {len(parts)} parts, feed_list has {len(self.names)}", AttrError)
        return [dict(zip(self.names, parts, strict=True))]


def _as_arrays(sample: Any) -> Any:
    return [np.array(part) for part in sample] if isinstance(sample, (list, tuple)) else np.array(sample)
