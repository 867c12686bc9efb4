"""Data sets: what has samples by number, or gives them one after the other."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.errors import AttrError, ShapeError, require
from minigraph.errors.kinds import MISSING


class Dataset:
    """Base: a subclass gives `self[i]`, a sample, and `len(self)`."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class IterableDataset(Dataset):
    """Base: a subclass gives `iter(self)`, the samples in their order."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __getitem__(self, index: int) -> Any:
        raise RuntimeError(f"{type(self).__name__} has no samples by number")

    def __len__(self) -> int:
        raise RuntimeError(f"{type(self).__name__} has no length")


class TensorDataset(Dataset):
    """Sample i is the tuple of row i of each array."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = [np.asarray(t) for t in tensors]
        fits = bool(self.tensors) and all(t.ndim and len(t) == len(self.tensors[0]) for t in self.tensors)
        require(fits, f"tensors need one first size, have {[list(t.shape) for t in self.tensors]}", ShapeError)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Sample i is that of all data sets, one behind the other in one tuple."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        require(self.datasets, "datasets is an empty list", MISSING)
        lengths = [len(d) for d in self.datasets]
        require(len(set(lengths)) == 1, f"datasets have different lengths: {lengths}", AttrError)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        samples = (d[index] for d in self.datasets)
        return tuple(itertools.chain.from_iterable(s if isinstance(s, (list, tuple)) else [s] for s in samples))

    def __len__(self) -> int:
        return len(self.datasets[0])


class ConcatDataset(Dataset):
    """The samples of the first data set, then those of the second, and so on."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        require(self.datasets, "datasets is an empty list", MISSING)
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise ValueError(f"sample {index} of {len(self)}")
        which = bisect.bisect_right(self.cumulative_sizes, at)
        return self.datasets[which][at - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset):
    """The samples of the first iterable data set, then those of the second, and so on."""

    def __init__(self, datasets: Sequence[IterableDataset]) -> None:
        self.datasets = list(datasets)
        require(self.datasets, "datasets is an empty list", MISSING)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


class Subset(Dataset):
    """The samples of a data set at these numbers."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, list(indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Dataset, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Subsets of these lengths, or of these shares of all, of samples in an order that Python's `random` draws.

    generator  something with `shuffle`, such as random.Random(7), in its place
    """
    count = len(dataset)
    if math.isclose(sum(lengths), 1.0) and sum(lengths) <= 1.0:
        sizes = [math.floor(count * share) for share in lengths]
        for i in range(count - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(n) for n in lengths]
    require(sum(sizes) == count, f"lengths {list(lengths)} do not add up to the {count} samples", AttrError)
    order = list(range(count))
    (generator or random).shuffle(order)
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
