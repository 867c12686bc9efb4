"""Paged states: they lie in pinned memory of the host and pass the card in blocks, beside the update.

    lane 1   block k comes to a place of the ring     once block k - PLACES is back
    lane 0   block k is updated there                 once it has come
    lane 2   block k goes back                        once it is updated

Both directions of the bus are busy at the same time, and the card needs memory for PLACES blocks only. A state is read
and written by copies alone: a kernel that touches the host's memory itself is slower than the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Copy, Part, Pipeline
from minigraph.kernels.cuda.record.tensors import ARENA_CHUNK, Column, Tensors
from minigraph.kernels.updates import Update
from minigraph.types import uint8

SMALL = 1 << 18  # bytes below which a state stays on the card: its copies take longer to begin than to run
BLOCK = 16 << 20  # bytes of a block, by bench/results/gpu_paged.json; only the first and the last wait alone
PLACES = 3  # of the ring: one that comes, one that is updated, one that goes
COME, UPDATE, GO = 1, 0, 2  # lanes

Lists = dict[str, list[Buffer]]


class TensorPart(NamedTuple):
    """Elements [start, stop) of a tensor, which lie from element `at` on in each column of a block."""

    tensor: int
    start: int
    stop: int
    at: int


def paged_and_others(binder: Binder, update: Update, given: Lists, results: Lists) -> list[list[int]]:
    """Numbers of the parameters whose states are paged, which the binder learns, then of the others.

    Master weights are states, too, but where a second pass reads them again (layer-wise adaptation).
    """
    slots = [*update.states, *(["MasterParam"] if "MasterParam" in results and update.finish is None else [])]
    everyone = list(range(len(given["Param"])))
    if binder.multi_tensor != "paged" or not slots:
        return [everyone]
    large = [i for i in everyone if all(_is_large(binder, given[slot][i]) for slot in slots)]
    paged = [i for i in large if all(given[slot][i] is results[slot][i] for slot in slots)]
    if len(paged) < len(large):
        binder.note("states that this run does not update in place are on the card, not paged")
    binder.paged += [given[slot][i] for slot in slots for i in paged]
    return [part for part in (paged, sorted({*everyone} - {*paged})) if part]


def _is_large(binder: Binder, state: Buffer) -> bool:
    """Whether a state is one of a Scope, and worth a copy."""
    return id(state) in binder.outside and state.nbytes >= SMALL


def end_of(piece: TensorPart) -> int:
    """The place behind a piece at which another one may begin."""
    return piece.at + -(-(piece.stop - piece.start) // ARENA_CHUNK) * ARENA_CHUNK


def blocks_of(sizes: Sequence[int], most: int) -> list[list[TensorPart]]:
    """Pieces of tensors in order, `most` elements in each block; `most` and places are multiples of ARENA_CHUNK."""
    blocks: list[list[TensorPart]] = []
    at = most
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if at >= most:
                blocks.append([])
                at = 0
            piece = TensorPart(tensor, start, min(size, start + most - at), at)
            blocks[-1].append(piece)
            start, at = piece.stop, end_of(piece)
    return blocks


def record_paged(
    binder: Binder, tensors: Tensors, paged: Collection[int], update: Callable[[Tensors, int], None]
) -> None:  # fmt: skip
    """Record the update of all elements block by block.

    paged    numbers of the columns that lie in the host's memory
    update   records the kernel for these pieces of tensors, of which the first is one of the tensor with this number
    """
    columns, sizes = tensors
    width = sum(columns[c][0].dtype.itemsize for c in paged)
    most = max(1, BLOCK // (width * ARENA_CHUNK)) * ARENA_CHUNK
    blocks = blocks_of(sizes, most)
    most = min(most, max(end_of(block[-1]) for block in blocks))
    ring = [binder.scratch((most * width,), uint8) for _ in range(min(PLACES, len(blocks)))]
    parts: list[Part] = []
    for k, block in enumerate(blocks):
        place, start, shown = ring[k % len(ring)], 0, list[Column]()
        come, go = list[Copy](), list[Copy]()
        for number, column in enumerate(columns):
            item = column[0].dtype.itemsize
            own = [column[p.tensor].view((p.stop - p.start,), offset=p.start * item) for p in block]
            if number in paged:
                held = [place.view(b.shape, b.dtype, start + p.at * item) for b, p in zip(own, block, strict=True)]
                come += map(Copy, held, own)
                go += map(Copy, own, held)
                own, start = held, start + most * item
            shown.append(own)
        pieces = Tensors(shown, [p.stop - p.start for p in block])
        kernels = binder.apart(partial(update, pieces, block[0].tensor))
        before = 3 * (k - len(ring)) + 2  # what this place held goes back
        parts.append(Part(come, COME, [before] if before >= 0 else []))
        parts.append(Part(kernels, UPDATE, [3 * k]))
        parts.append(Part(go, GO, [3 * k + 1]))
    binder.calls.append(Pipeline(parts))
