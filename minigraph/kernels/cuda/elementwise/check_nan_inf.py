"""check_nan_inf on a GPU: which arrays are not finite, and whether an operator is refused (check_nan_inf.cu)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

THREADS, PER_THREAD, BLOCKS = 256, 8, 8  # blocks for each multiprocessor, at the most
FAULT, RECORD, MARK = 7, 24, 6  # words of record/prelude.cuh's Fault, of NonFinite, of a row of marks


def record() -> Buffer:
    """The fault record of a plan that checks."""
    return Buffer((RECORD,), np.dtype("int64"))


def scan(binder: Binder, x: Buffer, marks: Buffer, row: int) -> None:
    """Note in a row of `marks` what of x is not finite."""
    assert x.steps is None, f"{x} does not lie in one piece"
    blocks = min(blocks_for(x.size, THREADS * PER_THREAD), binder.device.multiprocessors * BLOCKS)
    mark = marks.view((MARK,), offset=row * MARK * 8)
    defines = {"T": CUDA_TYPES[x.dtype]}
    binder.launch("elementwise/check_nan_inf.cu", "scan", blocks, THREADS, x, mark, i64(x.size), defines=defines)


def judge(
    binder: Binder, marks: Buffer, inputs: Sequence[int], outputs: Sequence[tuple[int, int]], passes: int, step: int
) -> None:
    """Refuse operator `step`, which read the values of the rows `inputs` and wrote `outputs`: (row, excused kinds).

    passes   the kinds that are excused where an input holds them
    """
    words = np.array([*inputs, *(word for output in outputs for word in output)], np.int64)
    (_, rows) = binder.table([], words)
    binder.launch(
        "elementwise/check_nan_inf.cu", "judge", 1, 32, marks, rows, i64(len(inputs)), i64(len(outputs)), i64(passes),
        binder.counter, binder.fault, i64(step), defines={"JUDGE": 1},
    )  # fmt: skip


def unpacked(words: np.ndarray) -> tuple[list[int], list[int]]:
    """(counts, first positions) of a mark."""
    return [int(n) for n in words[:3]], [int(n) for n in ~words[3:6]]
