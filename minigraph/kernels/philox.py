"""Philox4x32-10: random words as a function of (key, counter), without a state.

Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC'11. A block of four
32-bit words is computed from a counter of four words and a key of two. Layout, the same for every
operator and on every place:

    key      (seed & 0xffffffff, seed >> 32)
    counter  (block & 0xffffffff, block >> 32, step, operator's number), the last two modulo 2^32
    element i of an output (in row-major order) is made from word i % 4 of block i // 4

so an element depends on the key and its own position only: any cut of an array into pieces gives
the same numbers. From words to values, with w the element's word, computed in float64 and rounded
once to the output's type (a float32 program draws the rounded numbers of its float64 twin):

    uniform  u = w * 2^-32 in [0, 1), then low + (high - low) * u; a value that rounding brought up to
             `high` becomes the next smaller one
    normal   words (0, 1) and (2, 3) of a block are pairs (a, b): r = sqrt(-2 ln((a + 1) * 2^-32)) and
             t = 2 pi (b * 2^-32); the pair's first element is r cos(t), its second r sin(t)
    keep     1 where w >= round(p * 2^32), for a drop probability p
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .special import central_normal_quantile

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
BLOCKS_AT_ONCE = 8192  # counters of 64 KiB each: a round's arrays stay in the cache
WORD = 2.0**-32

Rng = tuple[int, ...]  # seed, operator's number, step, and for a part of an array the index of its first element


def philox4x32(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> np.ndarray:
    """Blocks of words [n, 4] (uint32) for counters given as four arrays of n words."""
    c0, c1, c2, c3 = (np.array(c, np.uint64) for c in counter)
    p0, p1 = np.empty_like(c0), np.empty_like(c0)
    k0, k1 = key
    for _ in range(ROUNDS):
        np.multiply(c0, MULTIPLIERS[0], out=p0)
        np.multiply(c2, MULTIPLIERS[1], out=p1)
        np.right_shift(p1, HALF, out=c0)
        np.bitwise_xor(c0, c1, out=c0)
        np.bitwise_xor(c0, np.uint64(k0), out=c0)
        np.right_shift(p0, HALF, out=c2)
        np.bitwise_xor(c2, c3, out=c2)
        np.bitwise_xor(c2, np.uint64(k1), out=c2)
        np.bitwise_and(p1, LOW, out=c1)
        np.bitwise_and(p0, LOW, out=c3)
        k0, k1 = (k0 + WEYL[0]) % 2**32, (k1 + WEYL[1]) % 2**32
    blocks = np.empty((c0.size, 4), np.uint32)
    for i, c in enumerate((c0, c1, c2, c3)):
        blocks[:, i] = c
    return blocks


def words(rng: Rng, start: int, stop: int) -> np.ndarray:
    """The random words of elements start to stop (uint32)."""
    seed, number, step, *first = rng
    start, stop = start + sum(first), stop + sum(first)
    block = np.arange(start // 4, (stop + 3) // 4, dtype=np.uint64)
    counter = (block & LOW, block >> HALF, np.full_like(block, step & 0xFFFFFFFF),
               np.full_like(block, number & 0xFFFFFFFF))  # fmt: skip
    drawn = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return drawn.reshape(-1)[start % 4 : start % 4 + stop - start]


def filled(
    rng: Rng, shape: tuple[int, ...], dtype: np.dtype, values: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """An array whose elements are values(words), made piece by piece."""
    result = np.empty(math.prod(shape), dtype)
    for start in range(0, result.size, 4 * BLOCKS_AT_ONCE):
        stop = min(start + 4 * BLOCKS_AT_ONCE, result.size)
        whole = -(-(stop - start) // 4) * 4  # pairs of a block are made together
        result[start:stop] = values(words(rng, start, start + whole))[: stop - start]
    return result.reshape(shape)


def uniform(rng: Rng, shape: tuple[int, ...], low: float, high: float, dtype: np.dtype) -> np.ndarray:
    """Uniform numbers in [low, high)."""
    result = filled(rng, shape, dtype, lambda w: low + (high - low) * (w * WORD))
    if low < high:
        largest = np.nextafter(dtype.type(high), dtype.type(low))
        np.minimum(result, largest, out=result)
    return result


def normal(rng: Rng, shape: tuple[int, ...], mean: float, std: float, dtype: np.dtype) -> np.ndarray:
    """Normal numbers by Box and Muller's transform."""

    def values(w: np.ndarray) -> np.ndarray:
        pairs = w.reshape(-1, 2)
        radius = np.sqrt(-2 * np.log((pairs[:, 0] + 1.0) * WORD))
        angle = pairs[:, 1] * (2 * math.pi * WORD)
        return mean + std * np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1).reshape(-1)

    return filled(rng, shape, dtype, values)


def truncated_normal(rng: Rng, shape: tuple[int, ...], mean: float, std: float, dtype: np.dtype) -> np.ndarray:
    """Normal numbers given that they lie within 2 std of the mean, by the inverse distribution function."""
    inside = math.erf(math.sqrt(2))  # the probability of |z| < 2

    def values(w: np.ndarray) -> np.ndarray:
        return mean + std * central_normal_quantile(inside * ((w + 0.5) * WORD - 0.5))

    return filled(rng, shape, dtype, values)


def keep_mask(rng: Rng, shape: tuple[int, ...], p: float) -> np.ndarray:
    """uint8 mask: 0 with probability p, else 1."""
    threshold = round(p * 2**32)
    if threshold == 2**32:
        return np.zeros(shape, np.uint8)
    return filled(rng, shape, np.dtype(np.uint8), lambda w: w >= np.uint32(threshold))
