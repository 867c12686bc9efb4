"""Kernels over lists of tensors, and the ways to tell them where the tensors lie.

    auto       struct32k where one launch is enough, else table: the fastest measured that moves no array
    table      addresses, sizes and the tensor of each block in device memory, written once when a plan knows them
    struct4k   a struct by value within 4,096 bytes of arguments, in as many launches as that takes
    struct32k  likewise within 32,764 bytes, which drivers of CUDA 12.1 and later take
    arena      one base address for each column; tensors have the same places in all of them
    unified    a table; the states lie in managed memory, which the driver pages
    paged      as auto; large states lie in pinned memory of the host and pass the card in blocks: optimizer/paged.py

Every block works on CHUNK elements of one tensor, so the launch covers all tensors whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import KernelError, require

from .binder import Binder
from .buffer import Buffer, Words
from .compile import read_source

THREADS = 256
STRUCT_BYTES = {"struct4k": 4096, "struct32k": 32764}
HEAD_WORDS = 3  # of struct Tensors besides its lists
ARENA_CHUNK = 1024  # elements of which places in arenas are multiples
MARGIN = 512  # bytes of a launch's other arguments

Column = Sequence[Buffer]


class Tensors(NamedTuple):
    """Lists of buffers, one for each column, whose i-th entries have `sizes[i]` elements."""

    columns: Sequence[Column]
    sizes: Sequence[int]

    def blocks(self, chunk: int) -> list[int]:
        """How many blocks each tensor takes."""
        return [-(-size // chunk) for size in self.sizes]


def chosen_mode(binder: Binder, tensors: int, columns: int) -> str:
    """The binder's mode, with auto decided for so many tensors: that of paged for what lies on the card."""
    if binder.multi_tensor not in ("auto", "paged"):
        return binder.multi_tensor
    fits = tensors <= struct_width(columns, STRUCT_BYTES["struct32k"])
    return "struct32k" if fits and binder.device.arguments >= STRUCT_BYTES["struct32k"] else "table"


def tensor_source(text: str, defines: Mapping[str, Any], generated: str = "") -> str:
    """prelude, arithmetic, `#define`s, how a block finds its tensor, generated functions, then the kernels."""
    head = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    parts = [read_source("record/prelude.cuh"), read_source("record/arithmetic.cuh"), head]
    return "\n".join([*parts, read_source("record/tensors.cuh"), generated, read_source(text)])


def struct_width(columns: int, limit: int) -> int:
    """Tensors whose addresses fit into a struct of `limit` bytes, beside a launch's other arguments."""
    return (limit - MARGIN - 8 * HEAD_WORDS) // (8 * columns + 16)


def close_width(tensors: int, most: int) -> int:
    """The power of two that holds so many tensors, within `most`: a struct is copied whole at each launch.

    Not their number itself, so that programs of other sizes find their kernels compiled.
    """
    return min(most, 1 << max(0, tensors - 1).bit_length())


def launch_over(
    binder: Binder, text: str, function: str, tensors: Tensors, mode: str, chunk: int, *args: Any,
    defines: Mapping[str, Any], generated: str = "", width: int | None = None,
    groups: Sequence[range] | None = None, reads: tuple[Buffer, ...] = (), first: int = 0,
) -> None:  # fmt: skip
    """Launch `function` of a .cu file over all tensors, `args` after what says where they are.

    first   the number that the first tensor has for the kernel, where addresses come in structs
    width   tensors in one struct; what the longest launch needs, within the mode's limit, if not given
    reads   of `args`, what the kernel does not write
    groups  numbers of tensors that get launches of their own, in this order, where addresses come in structs; else all
            have one
    """
    columns, blocks = tensors.columns, np.array(tensors.blocks(chunk), np.int64)
    total = int(blocks.sum())
    defines = {**defines, "COLUMNS": len(columns), "CHUNK": chunk}
    if len(tensors.sizes) == 1:
        mode, width = "struct4k", 1
    if mode == "arena" and chunk == ARENA_CHUNK:
        bases = _bases(binder, tensors, blocks)
        if bases is not None:
            owners, = binder.table([], np.repeat(np.arange(len(blocks), dtype=np.int32), blocks))[1:]
            source = tensor_source(text, {**defines, "WAY": 2}, generated)
            binder.launch_source(source, function, total, THREADS, Words(bases), owners, *args)
            return
        binder.note("a table of addresses: these tensors cannot be brought together in arenas")
    if mode not in STRUCT_BYTES:
        words = [b for column in columns for b in column]
        starts = np.concatenate(([0], np.cumsum(blocks)[:-1])).astype(np.int32)
        owners = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
        parts = binder.table(words, np.array(tensors.sizes, np.int64), starts, owners)
        source = tensor_source(text, {**defines, "WAY": 0}, generated)
        binder.launch_source(source, function, total, THREADS, *parts, np.int64(len(blocks)), *args)
        return
    limit = STRUCT_BYTES[mode]
    require(
        limit <= binder.device.arguments, f"struct32k needs a driver of CUDA 12.1 or later: this device takes"
        f" {binder.device.arguments} bytes of arguments", KernelError, "multi_tensor_mode='table' works everywhere",
    )  # fmt: skip
    groups = groups or [range(len(blocks))]
    width = width or close_width(max(map(len, groups)), struct_width(len(columns), limit))
    source = tensor_source(text, {**defines, "WAY": 1, "WIDTH": width}, generated)
    for group in groups:
        for start in range(group.start, group.stop, width):
            part = range(start, min(start + width, group.stop))
            struct = packed_struct(tensors, part, blocks, width, int(blocks[:start].sum()), first)
            count = int(blocks[part.start : part.stop].sum())
            binder.launch_source(source, function, count, THREADS, struct, *args, reads=reads)


def _bases(binder: Binder, tensors: Tensors, blocks: np.ndarray) -> list[Buffer | int] | None:
    """One buffer for each column, in which tensors have the places that their blocks have."""
    starts = [int(n) * ARENA_CHUNK for n in np.concatenate(([0], np.cumsum(blocks)))]
    bases: list[Buffer | int] = []
    for column in tensors.columns:
        width = column[0].dtype.itemsize
        base = binder.side_by_side(column, [n * width for n in starts[:-1]], starts[-1] * width)
        if base is None:
            return None
        bases.append(base)
    return bases


def packed_struct(
    tensors: Tensors, part: range, blocks: np.ndarray, width: int, before: int, first: int = 0
) -> Words:  # fmt: skip
    """struct Tensors of tensors.cuh for these tensors; refused where they are more than its width."""
    require(
        len(part) <= width, f"{len(part)} tensors of {len(tensors.columns)} addresses do not fit into a struct of"
        f" {width}", KernelError, "a struct by value must fit into a kernel's arguments; use multi_tensor_mode='table'",
    )  # fmt: skip
    words: list[Buffer | int] = []
    empty = [0] * (width - len(part))
    for column in tensors.columns:
        words += [*(column[i] for i in part), *empty]
    words += [*(tensors.sizes[i] for i in part), *empty]
    starts = np.concatenate(([0], np.cumsum(blocks[part.start : part.stop])[:-1]))
    words += [*(int(s) for s in starts), *empty]
    return Words([*words, len(part), first + part.start, before])
