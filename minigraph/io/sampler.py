"""Samplers: in which order the samples of a data set come, and how they are put into batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import CONFLICT, MISSING


class Sampler:
    """Base: a subclass gives `iter(self)`, the numbers of samples in their order.

    draws  whether Python's `random` draws the order, so that nobody can find it again
    """

    draws = False

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequenceSampler(Sampler):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All numbers once in an order that is drawn, or `num_samples` of them.

    replacement  a number may come several times
    generator    an iterator of numbers to take in place of drawn ones; Python's `random` draws for None
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        super().__init__(data_source)
        most = None if replacement else len(data_source)
        self.num_samples = len(data_source) if num_samples is None else _count("num_samples", num_samples, most)
        self.replacement, self.generator = replacement, generator
        self.draws = generator is None

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        if self.generator is not None:
            yield from itertools.islice(self.generator, self.num_samples)
        elif self.replacement:
            yield from random.choices(range(size), k=self.num_samples)
        else:
            yield from random.sample(range(size), self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


class EpochSampler(Sampler):
    """All numbers once, in an order that belongs to `seed` and to `epoch`, which its user counts."""

    def __init__(self, data_source: Sized, seed: int) -> None:
        super().__init__(data_source)
        fits = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0
        require(fits, f"seed must be an int >= 0, is {seed!r}", AttrError)
        self.seed, self.epoch = int(seed), 0

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng([self.seed, self.epoch]).permutation(len(self)).tolist())

    def __len__(self) -> int:
        return len(self.data_source)


class SubsetRandomSampler(Sampler):
    """These numbers, each once, in an order that is drawn."""

    draws = True

    def __init__(self, indices: Sequence[int]) -> None:
        require(len(indices) > 0, "indices is an empty list", MISSING)
        self.indices = list(indices)

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(self.indices, len(self.indices)))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` numbers, drawn with these weights."""

    draws = True

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True) -> None:
        self.weights = np.asarray(weights, "float64").ravel()
        fits = len(self.weights) and (self.weights >= 0).all() and np.isfinite(self.weights).all()
        require(fits and self.weights.sum() > 0, "weights must be numbers >= 0, not all 0", AttrError)
        most = None if replacement else int((self.weights > 0).sum())
        self.num_samples, self.replacement = _count("num_samples", num_samples, most), replacement

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(random.getrandbits(64))
        shares = self.weights / self.weights.sum()
        return iter(rng.choice(len(shares), self.num_samples, self.replacement, shares).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` numbers: of a sampler, or of a data set in its order or (shuffle) in one that is drawn.

    drop_last  leaves a shorter list at the end out
    """

    def __init__(
        self, dataset: Any = None, sampler: Any = None, shuffle: bool = False, batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:  # fmt: skip
        require((dataset is None) != (sampler is None), "give a dataset or a sampler", CONFLICT)
        if sampler is None:
            sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
        self.sampler, self.drop_last = sampler, bool(drop_last)
        self.draws = getattr(sampler, "draws", False)
        self.batch_size = _count("batch_size", batch_size, None)

    def __iter__(self) -> Iterator[Any]:
        numbers = iter(self.sampler)
        while batch := list(itertools.islice(numbers, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


def _count(name: str, value: Any, most: int | None) -> int:
    fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0
    fits = fits and (most is None or value <= most)
    require(fits, f"{name} must be an int > 0{f' and <= {most}' if most is not None else ''}, is {value!r}", AttrError)
    return int(value)
