"""Data sets, samplers, and loaders that put samples into batches by threads."""

from .dataset import (
    ChainDataset,
    ComposeDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from .distributed_sampler import DistributedBatchSampler
from .feeder import DataFeeder
from .loader import DataLoader, get_worker_info
from .sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler", "ChainDataset", "ComposeDataset", "ConcatDataset", "DataFeeder", "DataLoader", "Dataset",
    "DistributedBatchSampler", "IterableDataset", "RandomSampler", "Sampler", "SequenceSampler", "Subset",
    "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "get_worker_info", "random_split",
]  # fmt: skip
