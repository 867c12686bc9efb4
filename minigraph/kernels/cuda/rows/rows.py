"""Launches of rows.cuh: a statistic of each row, then every element from it.

A row that fits goes through registers; a longer one through shared memory as far as that goes; few
long rows are cut into pieces for several blocks; rows whose elements do not lie side by side are
read twice, coalesced over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.elementwise.reduce import power_of_two
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import float64, uint8

PACK_BYTES = 16
REGISTERS = 32  # of a thread that hold elements of a row, 4 bytes each
RESIDENT = 1024  # threads on a multiprocessor that have so many
RESERVED_SHARED = 2 * 1024  # of a block, besides the shelf of `held`
STATIC_SHARED = 16 * 1024  # what kernels take besides the shelf, and more
STREAM_THREADS = 512
UNROLL = 4
COLUMN_THREADS, COLUMN_WIDTH = 256, 4
THREADS_WANTED = 1024  # on each multiprocessor before threads take several columns
PIECE_BYTES = 64  # of a piece's state and row; rows.cuh's Piece is no larger
BLOCKS_PER_MULTIPROCESSOR = 4


class RowOperator(NamedTuple):
    """An operator on rows: the .cu file that defines it, its macros, and the launch arguments they name.

    inputs   arrays of the size of the rows that it reads
    reduces  whether it needs a statistic
    """

    file: str
    defines: Mapping[str, Any]
    arguments: Sequence[Any] = ()
    inputs: int = 1
    reduces: bool = True


def bind_rows(binder: Binder, operator: RowOperator, a: Buffer, b: Buffer, y: Buffer, axis: int) -> None:
    """y = operator(a, b) along `axis`; b is any buffer where there is one input."""
    axis %= a.ndim
    sizes = math.prod(a.shape[:axis]), a.shape[axis], math.prod(a.shape[axis + 1 :])
    if a.size == 0:
        return
    if sizes[2] == 1:
        _rows(binder, operator, a, b, y, *sizes[:2])
    else:
        _columns(binder, operator, a, b, y, *sizes)


def lanes_of_row(packs: int, most: int, widest: int = 1024, least: int = 128) -> int:
    """Threads that share a row of `packs` packs when each holds at most `most`; 0 where more than `widest` would.

    They are `least` or more where a warp does not suffice.
    """
    if packs <= 32 * most:
        return min(32, power_of_two(packs))
    lanes = max(least, power_of_two(blocks_for(packs, most)))
    return lanes if lanes <= widest else 0


def shelved_row(packs: int, most: int, pack_bytes: int, shared: int, widest: int) -> int:
    """Threads that share a row of which each keeps packs beyond `most` in shared memory; 0 where it is too long.

    Two blocks of 512 threads on a multiprocessor, else one of 1024: one loads while the other computes.
    """
    for lanes in (512, 1024):
        room = shared * lanes // RESIDENT - RESERVED_SHARED
        if lanes <= widest and (blocks_for(packs, lanes) - most) * lanes * pack_bytes <= room:
            return lanes
    return 0


def _rows(binder: Binder, operator: RowOperator, a: Buffer, b: Buffer, y: Buffer, rows: int, n: int) -> None:
    width = PACK_BYTES // a.dtype.itemsize
    aligned = n % width == 0 and all(x.alignment % PACK_BYTES == 0 for x in (a, b, y))
    packs = blocks_for(n if aligned else n + width - 1, width)
    resident = RESIDENT // 2 if a.dtype == float64 else RESIDENT  # its exponentials take twice the registers
    raw = int(operator.inputs == 2 or not operator.reduces)
    words = width * operator.inputs * (2 if a.dtype == float64 else 1)  # registers that a pack of each input fills
    words = words if operator.reduces else PACK_BYTES // 4  # as they are in memory
    most, shelf_bytes = REGISTERS // words, PACK_BYTES * operator.inputs
    lanes = lanes_of_row(packs, most, 512)
    if not lanes and operator.reduces:
        lanes = shelved_row(packs, most, shelf_bytes, binder.device.shared, resident)
    facts = {"ALIGNED": int(aligned), "WIDTH": width, "UNROLL": UNROLL if width * operator.inputs <= 8 else UNROLL // 2}
    if lanes:
        threads, each = max(lanes, 128), blocks_for(packs, lanes)
        facts |= {"LANES": lanes, "PACKS": each, "HELD": min(each, most), "RAW": raw, "THREADS": threads}
        facts["BLOCKS"] = max(1, resident // threads)
        shared = max(0, each - most) * lanes * shelf_bytes
        args = a, b, y, i64(rows), i64(n)
        _launch(binder, operator, facts, "held", blocks_for(rows, threads // lanes), threads, args, shared)
        return
    facts |= {"THREADS": STREAM_THREADS, "BLOCKS": 1 if a.dtype == float64 else 2}  # float64 needs 128 registers
    splits = _splits(binder, operator, rows, packs)
    if splits == 1 and operator.reduces:
        kept = min(packs, (binder.device.shared - STATIC_SHARED) // (PACK_BYTES * operator.inputs))
        shared = kept * PACK_BYTES * operator.inputs
        args = a, b, y, i64(n), i64(kept)
        _launch(binder, operator, {"STREAM": 1, **facts}, "streamed", rows, STREAM_THREADS, args, shared)
        return
    piece = blocks_for(packs, splits)
    splits = blocks_for(packs, piece)
    pieces = binder.scratch((rows * splits * PIECE_BYTES,), uint8)
    facts, blocks, cut = {"CUT": 1, **facts}, rows * splits, (i64(n), i64(piece), i32(splits))
    if operator.reduces:
        _launch(binder, operator, facts, "statistics", blocks, STREAM_THREADS, (a, b, pieces, *cut))
    _launch(binder, operator, facts, "apply", blocks, STREAM_THREADS, (a, b, y, pieces, *cut))


def _splits(binder: Binder, operator: RowOperator, rows: int, packs: int) -> int:
    """Pieces of a long row: as many as fill the device, or any number where nothing joins them."""
    most = blocks_for(packs, STREAM_THREADS * 2 * UNROLL)
    if not operator.reduces:
        return most
    if 2 * rows > binder.device.multiprocessors:
        return 1
    return min(most, blocks_for(BLOCKS_PER_MULTIPROCESSOR * binder.device.multiprocessors, rows))


def _columns(
    binder: Binder, operator: RowOperator, a: Buffer, b: Buffer, y: Buffer, outer: int, n: int, inner: int
) -> None:
    width = min(COLUMN_WIDTH, PACK_BYTES // a.dtype.itemsize)
    wanted = binder.device.multiprocessors * THREADS_WANTED
    while (
        inner % width
        or any(x.alignment % (width * x.dtype.itemsize) for x in (a, b, y))
        or (width > 1 and outer * (inner // width) * min(8, n) < wanted)
    ):
        width //= 2
    across = inner // width
    side = 32 if outer * across * 8 >= wanted else 8  # lanes that lie side by side; 8 still fill a sector
    ty = min(power_of_two(n // UNROLL), COLUMN_THREADS // min(side, power_of_two(across)))
    tx = min(power_of_two(across), COLUMN_THREADS // ty)
    tiles = blocks_for(across, tx)
    facts = {"WIDTH": width, "UNROLL": UNROLL, "THREADS": COLUMN_THREADS, "TX": tx, "TY": ty, "ALIGNED": 1}
    blocks = tiles * blocks_for(outer, COLUMN_THREADS // (tx * ty))
    args = a, b, y, i64(outer), i64(n), i64(inner), i32(tiles)
    _launch(binder, operator, facts, "columns", blocks, COLUMN_THREADS, args)


def _launch(
    binder: Binder, operator: RowOperator, facts: Mapping[str, Any], function: str, blocks: int, threads: int,
    args: Sequence[Any], shared: int = 0,
) -> None:  # fmt: skip
    dtype = args[0].dtype
    defines = {"T": CUDA_TYPES[dtype], "C": compute_type(dtype), **facts, **operator.defines}
    pairs = [(key, str(value)) for key, value in defines.items()]
    source = full_source("rows/scores.cuh", pairs) + read_source(operator.file) + read_source("rows/rows.cuh")
    binder.launch_source(source, function, blocks, threads, *args, *operator.arguments, shared=shared)
