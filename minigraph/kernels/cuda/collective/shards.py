"""Pieces of arrays on the GPUs of several ranks: where sizes divide equally, NCCL reads and writes arrays in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.groups import of_size
from minigraph.kernels.pieces import piece_bounds

from .collective import Collective

Slots = Mapping[str, Any]


def c_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = this rank's piece of X."""
    rank, ranks = of_size(attrs["nranks"]).rank, attrs["nranks"]
    for x, out in zip(ins["X"], outs["Out"], strict=True):
        start, end = piece_bounds(x.size, rank, ranks)
        if end - start < out.size:
            binder.zero(out)
        if end > start:
            size = x.dtype.itemsize
            binder.copy(out.view((end - start,)), x.view((end - start,), offset=start * size))


def c_reduce_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = this rank's piece of the sum of X over all ranks."""
    ranks = of_size(attrs["nranks"]).size
    for x, out in zip(ins["X"], outs["Out"], strict=True):
        if out.size:
            binder.calls.append(Collective("reduce_scatter", out, _padded(binder, x, ranks * out.size)))


def c_gather_shards(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = what all ranks' X are together."""
    ranks = of_size(attrs["nranks"]).size
    for x, out in zip(ins["X"], outs["Out"], strict=True):
        if ranks * x.size == out.size:
            binder.calls.append(Collective("all_gather", out, x))
        elif x.size:
            room = binder.scratch((ranks * x.size,), x.dtype)
            binder.calls.append(Collective("all_gather", room, x))
            binder.copy(out, room.view(out.shape))


def _padded(binder: Binder, x: Buffer, size: int) -> Buffer:
    """x with zeros behind it up to so many elements; itself where it has as many."""
    if x.size == size:
        return x
    room = binder.scratch((size,), x.dtype)
    binder.zero(room)
    binder.copy(room.view(x.shape), x)
    return room
