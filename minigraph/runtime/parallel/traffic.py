"""Traffic: what one rank sends in a step, and what it computes meanwhile, read from the program that runs."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.program import Operator, Program

MEGABYTE = 1 << 20
RING = {  # bytes sent for each byte of an operand, in units of (W - 1) / W: the least that any algorithm can send
    "c_allreduce_sum": 2, "c_allreduce_coalesced": 2, "c_reducescatter": 1, "c_reduce_shards": 1,
    "c_gather_shards": 1, "c_reduce_sum": 1, "c_broadcast": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """One collective.

    nbytes   what a rank sends for it, 0 where a size is known only in the run
    beside   operators of backward behind it in the program, which run while it travels
    """

    op: Operator
    nbytes: int
    beside: int


@dataclass(frozen=True)
class Traffic:
    """All collectives of a step, in their order."""

    ranks: int
    sent: tuple[Sent, ...]

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.sent)

    @property
    def hidden(self) -> int:
        """Bytes that begin to travel while backward goes on."""
        return sum(s.nbytes for s in self.sent if s.beside)

    def line(self) -> str:
        """In one sentence."""
        return (
            f"each of {self.ranks} ranks sends {self.nbytes / MEGABYTE:.3g} MB in {len(self.sent)} collectives,"
            f" {self.hidden / MEGABYTE:.3g} MB of it while backward goes on"
        )

    def lines(self) -> list[str]:
        """Each collective on a line of its own."""
        return [
            f"  {s.op.type:<16} {s.op.output_arg_names[0]:<24} {len(s.op.input('X'))} in, {s.nbytes / MEGABYTE:.3g} MB,"
            f" {s.beside} operators of backward meanwhile    {s.op.site or ''}".rstrip()
            for s in self.sent
        ]  # fmt: skip


def traffic(program: Program, ranks: int) -> Traffic | None:
    """What each of so many ranks sends; None where nothing is sent."""
    ops = [op for op in program.ops if op.type in (*RING, "c_allgather")]
    if ranks < 2 or not ops:
        return None
    positions = {id(op): i for i, op in enumerate(program.ops)}
    backward = [
        i for i, op in enumerate(program.ops) if op.role == "backward" and "collective" not in op.opdef.traits
        and op.opdef.shows is None and op.opdef.joins is None and op.type != "cast"
    ]  # fmt: skip
    return Traffic(ranks, tuple(
        Sent(op, _bytes(op, ranks), sum(i > positions[id(op)] for i in backward)) for op in ops
    ))  # fmt: skip


def _bytes(op: Operator, ranks: int) -> int:
    whole = op.outputs["Out"] if op.type == "c_gather_shards" else op.inputs["X"]
    sent = op.attrs.get("sent", "auto")  # the type
    types = [v.type if sent == "auto" else v.type.with_dtype(sent) for v in whole if v.type.is_static]
    nbytes = sum(t.nbytes for t in types)
    return nbytes * (ranks - 1) if op.type == "c_allgather" else RING[op.type] * nbytes * (ranks - 1) // ranks
