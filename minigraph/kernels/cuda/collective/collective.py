"""Collectives as recorded calls: NCCL works on device memory, on a stream of its own inside the captured graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Call, Primitives, Run
from minigraph.kernels.groups import of_size
from minigraph.kernels.one_piece import in_a_row
from minigraph.types import as_dtype

Slots = Mapping[str, Any]


@dataclass(slots=True)
class Collective(Call):
    """What all ranks do with a buffer; `kind` is a method of groups.Group."""

    kind: str
    out: Buffer
    x: Buffer
    root: int = 0
    ordered: ClassVar[bool] = True

    def title(self) -> str:
        return f"{self.kind} {self.x.nbytes} bytes"

    def bound(self, runtime: Primitives) -> Run:
        x, out = self.x, self.out
        return runtime.collective(self.kind, out.address, x.address, (out.size, x.size), x.dtype, self.root)


@dataclass(slots=True)
class Together(Call):
    """Collectives of one kind on several buffers, which NCCL moves in one group."""

    kind: str
    outs: list[Buffer]
    xs: list[Buffer]
    ordered: ClassVar[bool] = True

    def title(self) -> str:
        return f"{self.kind} {sum(x.nbytes for x in self.xs)} bytes of {len(self.xs)} arrays"

    def bound(self, runtime: Primitives) -> Run:
        return runtime.together([
            runtime.collective(self.kind, out.address, x.address, (out.size, x.size), x.dtype, 0)
            for out, x in zip(self.outs, self.xs, strict=True)
        ])  # fmt: skip


def _record(binder: Binder, kind: str, ins: Slots, outs: Slots, root: int = 0) -> None:
    if ins["X"].nbytes:
        binder.calls.append(Collective(kind, outs["Out"], ins["X"], root))


def c_allreduce_sum(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the sum of X over all ranks."""
    _record(binder, "all_reduce", ins, outs)


def c_allreduce_coalesced(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Likewise for each X: they lie one behind the other in one buffer, the bucket, which is reduced as a whole.

    The plan lays them there, so whoever computes them writes into the bucket. What cannot lie there is copied.
    """
    pairs = [(x, out) for x, out in zip(ins["X"], outs["Out"], strict=True) if out.size]
    if not pairs:
        return
    placed, nbytes = in_a_row(out for _, out in pairs)
    bucket = binder.side_by_side([out for _, out in pairs], [at for _, at in placed], nbytes)
    copies = [] if bucket is not None else placed
    if bucket is None:
        binder.note(f"copies {len(pairs)} arrays: they have places elsewhere")
        bucket = binder.scratch((nbytes,), np.uint8)
    for x, out in pairs:
        binder.copy(out, x)
    for out, at in copies:
        binder.copy(bucket.view(out.shape, out.dtype, at), out)
    dtype = pairs[0][1].dtype
    _reduce(binder, bucket.view((nbytes // dtype.itemsize,), dtype), attrs["sent"])
    for out, at in copies:
        binder.copy(out, bucket.view(out.shape, out.dtype, at))


def _reduce(binder: Binder, x: Buffer, sent: str) -> None:
    """x becomes its sum over all ranks, which travels in the type `sent`."""
    narrow = x if sent == "auto" else binder.scratch(x.shape, as_dtype(sent))
    if narrow is not x:
        bind_pointwise(binder, {"Out": narrow}, {"X": x}, {"Out": "X"})
    binder.calls.append(Collective("all_reduce", narrow, narrow))
    if narrow is not x:
        bind_pointwise(binder, {"Out": x}, {"X": narrow}, {"Out": "X"})


def c_reduce_sum(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Likewise on rank `root`; NCCL leaves Out alone on the others."""
    binder.zero(outs["Out"])
    _record(binder, "reduce", ins, outs, attrs["root"])


def c_broadcast(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X of rank `root`."""
    _record(binder, "broadcast", ins, outs, attrs["root"])


def c_allgather(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X of all ranks, joined."""
    of_size(attrs["nranks"])
    _record(binder, "all_gather", ins, outs)


def c_reducescatter(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = a part of the sum of X over all ranks."""
    of_size(attrs["nranks"])
    _record(binder, "reduce_scatter", ins, outs)


def barrier(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """A copy of X; the ranks add up one number that nobody reads."""
    binder.copy(outs["Out"], ins["X"])
    number = binder.scratch((1,), np.float32)
    binder.zero(number)
    binder.calls.append(Collective("all_reduce", number, number))
