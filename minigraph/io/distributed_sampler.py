"""DistributedBatchSampler: each rank's batches of one data set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.kernels.groups import present

from .sampler import BatchSampler


class DistributedBatchSampler(BatchSampler):
    """Batches of the numbers of samples for one of several ranks: of each round of batches rank r takes the r-th.

    num_replicas, rank   the present group's for None
    shuffle              another order in each epoch, the same on all ranks: set_epoch(n) says which
    drop_last            leave out the last batch where it has fewer samples
    Samples from the beginning come once more where their number does not divide by the ranks, so that all ranks have
    as many batches of the same sizes.
    """

    def __init__(
        self, dataset: Any, batch_size: int, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = False, drop_last: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(dataset, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last)
        group = present()
        self.dataset, self.epoch = dataset, 0
        self.nranks = group.size if num_replicas is None else num_replicas
        self.local_rank = group.rank if rank is None else rank
        fits = isinstance(self.nranks, int) and isinstance(self.local_rank, int) and 0 <= self.local_rank < self.nranks
        require(fits, f"rank is {self.local_rank!r} of num_replicas={self.nranks!r}", AttrError)
        self.shuffles = shuffle
        self.draws = False  # the epoch says the order

    def set_epoch(self, epoch: int) -> None:
        """Decide the order of the next iteration."""
        self.epoch = epoch

    def _own(self) -> list[int]:
        """This rank's samples in their order."""
        total = math.ceil(len(self.dataset) / self.nranks) * self.nranks
        order = np.resize(np.arange(len(self.dataset)), total)
        if self.shuffles:
            np.random.RandomState(self.epoch).shuffle(order)
            self.epoch += 1
        whole = total - total % (self.batch_size * self.nranks)
        rounds = order[:whole].reshape(-1, self.nranks, self.batch_size)[:, self.local_rank]
        rest = order[whole:].reshape(self.nranks, -1)[self.local_rank]
        return [*rounds.reshape(-1).tolist(), *rest.tolist()]

    def __iter__(self) -> Iterator[list[int]]:
        own = self._own()
        for start in range(0, len(own), self.batch_size):
            batch = own[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        own = math.ceil(len(self.dataset) / self.nranks)
        return own // self.batch_size if self.drop_last else math.ceil(own / self.batch_size)
