"""The memory of a CPU's plans: one range of addresses, at the beginning of which all of them lie.

Plans of one executor never run at the same time, and a page takes memory once it is written: so all of them together
take what the largest takes, and none moves when a larger one comes.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from minigraph.kernels.cores import text_of
from minigraph.kernels.one_piece import rounded
from minigraph.runtime.memory import Life, layout
from minigraph.types import TensorType, bfloat16, float16, float32

PAGE, LARGE = 4096, 65536  # bytes
HUGE = 4 << 20  # bytes of a plan from which large pages pay, the bound that NumPy has for an array
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on
OVERCOMMIT, LIMITS = Path("/proc/sys/vm/overcommit_memory"), Path("/proc/self/limits")
LOW_PRECISION = frozenset({float16, bfloat16})


class AddressRange:
    """Memory for plans of which one runs at a time."""

    def __init__(self) -> None:
        self.range: mmap.mmap | None = None
        self.bytes = np.empty(0, np.uint8)

    @cached_property
    def scratch(self) -> AddressRange:
        """Memory beside it for what a step needs while it runs, of which no plan keeps anything."""
        return AddressRange()

    def buffers(self, lives: Sequence[Life]) -> tuple[list[np.ndarray], int]:
        """(arrays of so many bytes, how many all of them take), as `placed` says. Their content is undefined."""
        starts, nbytes = placed(lives)
        memory = self.bytes if self._reaches(nbytes) else pages(nbytes)
        return [memory[at : at + life.nbytes] for at, life in zip(starts, lives, strict=True)], nbytes

    def _reaches(self, nbytes: int) -> bool:
        """Whether the range is there and so large."""
        if self.range is None and nbytes:
            self.range = _reserved()
            self.bytes = np.frombuffer(self.range or b"", np.uint8)
        if nbytes >= HUGE and nbytes <= len(self.bytes) and self.range is not None:
            with suppress(OSError):  # a kernel may have none
                self.range.madvise(mmap.MADV_HUGEPAGE, 0, nbytes)
        return nbytes <= len(self.bytes)


class WideInputs:
    """Memory for the 16-bit operands of one step at a time, as float32: each lies behind the one before.

    Memory from the system would be given back after each step, and each page of it be a fault in the next.
    """

    def __init__(self) -> None:
        self.nbytes = self.end = 0
        self.memory = np.empty(0, np.uint8)

    def make_room(self, types: Sequence[TensorType]) -> None:
        """Let a step with operands of these types fit."""
        self.nbytes = max(self.nbytes, sum(rounded(4 * t.size) for t in types if t.dtype in LOW_PRECISION))

    def place(self, arena: AddressRange) -> None:
        """Lie in the range that `arena` has for scratch."""
        (self.memory,), _ = arena.scratch.buffers([Life(self.nbytes, 0, 0)])

    def of(self, x: np.ndarray) -> np.ndarray:
        """An operand as float32."""
        nbytes = 4 * math.prod(x.shape)
        wide = self.memory[self.end : self.end + nbytes].view(float32).reshape(x.shape)
        self.end += rounded(nbytes)
        np.copyto(wide, x)
        return wide


def placed(lives: Sequence[Life]) -> tuple[list[int], int]:
    """(offset of each block, bytes in all); two share memory if they never live together. Large ones are at pages."""
    wide = [Life(-(-life.nbytes // PAGE) * PAGE, *life[1:]) if life.nbytes >= LARGE else None for life in lives]
    large, end = layout([life or Life(0, 0, 0) for life in wide])
    small, rest = layout([Life(0, 0, 0) if big else life for big, life in zip(wide, lives, strict=True)])
    return [large[i] if big else end + small[i] for i, big in enumerate(wide)], end + rest


def _reserved() -> mmap.mmap | None:
    """As many addresses as the host has memory; None where they are not to be had without taking the memory, too.

    That is so where the kernel accounts for every page ahead (overcommit_memory 2), or this process has a limit of
    addresses (ulimit -v).
    """
    if sys.platform != "linux" or text_of(OVERCOMMIT).strip() == "2" or not _unlimited():
        return None
    try:
        nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (OSError, ValueError):
        return None


def _unlimited() -> bool:
    limits = text_of(LIMITS).splitlines()
    return any(line.startswith("Max address space") and "unlimited" in line.split() for line in limits)


def pages(nbytes: int) -> np.ndarray:
    """So many bytes of their own, at the start of a page if they are many."""
    if nbytes < LARGE:
        return np.empty(nbytes, np.uint8)
    room = np.empty(nbytes + PAGE, np.uint8)
    start = -room.__array_interface__["data"][0] % PAGE
    return room[start : start + nbytes]
