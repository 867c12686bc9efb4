"""Which of cuBLASLt's candidates computes a product of 16 bits, by what their tiles cost beside the sums.

The library puts candidates with large tiles first. Two tiles of 128 x 128 fit into a multiprocessor's registers: its
kernels write one while they multiply the next, which pays where sums are short and tiles are many. A sum that is cut
into parts costs these parts, which a whole one does not, even where its tiles leave some multiprocessors idle.

Measured on an H200, behind rest and without: bench/results/studies/product_candidates.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMALL = ("128x128", "176x128", "168x128", "144x128", "192x96", "128x160")  # tiles of which two fit; the fastest first
ROUNDS = 4  # of them over the GPU from which there is a next tile to hide behind
WRITING = 40  # terms of a sum that take as long as a byte of the result that is written behind it
PARTS = 120  # the same for a byte of a part, which is written, read and added by another kernel
GAIN = 1.03  # what a candidate must promise to be taken instead of the library's first
UNEVEN = 1e-3  # by which the library's rounds may lie above a whole number


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to cut a product.

    tile     rows x columns of the library's result where it is one of SMALL, or ""
    parts    into which each sum is cut
    waves    how often the tiles of one part fill the GPU
    """

    tile: str
    parts: int
    waves: float

    def cost(self, k: int, itemsize: int) -> float:
        """Time over that of multiplying `k` terms on a GPU that is full; `itemsize` of the result in bytes."""
        rounds = self.waves * self.parts
        idle = max(1, math.ceil(rounds - UNEVEN)) / rounds if rounds > 0 else 1.0
        hidden = self.parts == 1 and self.tile in SMALL and rounds >= ROUNDS
        written = 0.0 if hidden else WRITING * itemsize / k
        added = PARTS * 2 * 4 * self.parts / k if self.parts > 1 else 0.0  # float32, there and back
        return (1 + written) * idle + added


def preferred(offered: Sequence[Candidate], k: int, itemsize: int) -> int:
    """The number of the candidate to run of those that the library offers, its best one first."""
    enough = offered[0].cost(k, itemsize) / GAIN
    cheap = [n for n, one in enumerate(offered) if one.tile in SMALL and one.cost(k, itemsize) <= enough]
    return min(cheap, key=lambda n: SMALL.index(offered[n].tile), default=0)
