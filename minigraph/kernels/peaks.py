"""Peaks: what a device can do at the most, and the share of it that a time is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """The roofline of a device.

    bandwidth  bytes per second of its memory; 0 where it is not known
    flops      floating-point operations per second of products by data type; one that is missing is not known
    source     where the figures come from
    """

    name: str
    bandwidth: float
    flops: Mapping[str, float]
    source: str

    def share(self, seconds: float, flops: int | None, nbytes: int | None, dtype: str) -> float | None:
        """The time that the device needs at the least over the time that was taken; None where that is not known."""
        bounds = []
        if flops is not None and self.flops.get(dtype):
            bounds.append(flops / self.flops[dtype])
        if nbytes is not None and self.bandwidth:
            bounds.append(nbytes / self.bandwidth)
        return max(bounds) / seconds if bounds and seconds > 0 else None

    def __str__(self) -> str:
        """`CPU, 2 threads: 45.1 GFLOP/s float32, 12.2 GB/s; measured here`"""
        rates = [f"{rate / 1e9:,.1f} GFLOP/s {dtype}" for dtype, rate in self.flops.items()]
        return f"{self.name}: {', '.join([*rates, f'{self.bandwidth / 1e9:,.1f} GB/s'])}; {self.source}"
