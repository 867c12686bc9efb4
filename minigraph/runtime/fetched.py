"""What a run with return_numpy=False gives on a CPU: arrays that also answer as Paddle's tensors do."""

from __future__ import annotations

from typing import Any

import numpy as np


class FetchedShape(tuple[int, ...]):
    """Sizes that may also be called, as in Paddle: `value.shape()` is a list."""

    __slots__ = ()

    def __call__(self) -> list[int]:
        return list(self)


class FetchedArray(np.ndarray):
    """A NumPy array with `shape()` and `lod()`."""

    @property
    def shape(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return FetchedShape(super().shape)

    @shape.setter
    def shape(self, value: Any) -> None:
        np.ndarray.shape.__set__(self, value)  # pyright: ignore[reportAttributeAccessIssue]

    def lod(self) -> list[list[int]]:
        """Offsets of sequences in one tensor: there are no such tensors here."""
        return []

    recursive_sequence_lengths = lod


def as_tensor(value: Any) -> Any:
    """A fetched array of the host as a FetchedArray, one of a device as it is."""
    return value.view(FetchedArray) if isinstance(value, np.ndarray) else value
