"""Pieces of arrays on the GPUs of several ranks: where sizes divide equally, NCCL reads and writes arrays in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.groups import of_size
from minigraph.kernels.pieces import piece_bounds

from .collective import Collective, Together

Slots = Mapping[str, Any]


def c_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = this rank's piece of X, which may lie there already."""
    rank, ranks = of_size(attrs["nranks"]).rank, attrs["nranks"]
    for x, out in zip(ins["X"], outs["Out"], strict=True):
        start, end = piece_bounds(x.size, rank, ranks)
        if end - start < out.size:
            binder.zero(out)
        there = start * x.dtype.itemsize
        if end > start and root_and_offset(out) != (owner(x), root_and_offset(x)[1] + there):
            binder.copy(out.view((end - start,)), x.view((end - start,), offset=there))


def c_reduce_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = this rank's piece of the sum of X over all ranks."""
    ranks = of_size(attrs["nranks"]).size
    pairs = [(out, x) for x, out in zip(ins["X"], outs["Out"], strict=True) if out.size]
    _record(binder, "reduce_scatter", [(out, _padded(binder, x, ranks * out.size)) for out, x in pairs])


def c_gather_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = what all ranks' X are together; an X may be this rank's piece of its Out, where it lies."""
    ranks = of_size(attrs["nranks"]).size
    pairs = [(x, out) for x, out in zip(ins["X"], outs["Out"], strict=True) if x.size]
    rooms = [out if ranks * x.size == out.size else binder.scratch((ranks * x.size,), x.dtype) for x, out in pairs]
    _record(binder, "all_gather", [(room, x) for room, (x, _) in zip(rooms, pairs, strict=True)])
    for room, (_, out) in zip(rooms, pairs, strict=True):
        if room is not out:
            binder.copy(out, room.view(out.shape))


def _record(binder: Binder, kind: str, pairs: Sequence[tuple[Buffer, Buffer]]) -> None:
    """Collectives that write the first of each pair."""
    if len(pairs) == 1:
        binder.calls.append(Collective(kind, *pairs[0]))
    elif pairs:
        binder.calls.append(Together(kind, [out for out, _ in pairs], [x for _, x in pairs]))


def _padded(binder: Binder, x: Buffer, size: int) -> Buffer:
    """x with zeros behind it up to so many elements; itself where it has as many."""
    if x.size == size:
        return x
    room = binder.scratch((size,), x.dtype)
    binder.zero(room)
    binder.copy(room.view(x.shape), x)
    return room
