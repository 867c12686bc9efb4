"""Pieces of gradients and of parameters travel in buckets, too: one operator on lists in the place of many.

    a' = c_reduce_shards(a), b' = c_reduce_shards(b)  ->  a', b' = c_reduce_shards(a, b)

Nothing is joined in memory: NCCL takes arrays where they lie, and a CPU's kernel sends all in one exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.types import as_dtype

RULE = "Buckets of pieces"
MEGABYTE = 1 << 20
KINDS = {"c_reduce_shards": "X", "c_gather_shards": "Like"}  # the slot whose bytes travel


def join_shards(graph: Graph, report: PassReport, most: float, sent: str) -> None:
    """Join collectives of pieces up to `most` bytes; gradients travel in the type `sent`, "auto" is their own."""
    for kind, slot in KINDS.items():
        for members in list(_buckets(graph, kind, slot, most)):
            dtype = members[0].inputs[slot][0].dtype
            narrow = kind == "c_reduce_shards" and sent != "auto" and dtype != as_dtype(sent)
            if len(members) > 1 or narrow:
                _join(graph, members, slot, report, sent if narrow else None)


def _buckets(graph: Graph, kind: str, slot: str, most: float) -> Iterator[list[OpNode]]:
    """Operators that can become one, in their order: nothing reads what one of them writes before the last."""
    open_buckets: dict[object, list[OpNode]] = {}
    for op in graph.ops_of([kind]):
        bucket = open_buckets.setdefault((op.inputs[slot][0].dtype, op.role), [])
        full = sum(_nbytes(m, slot) for m in [*bucket, op]) > most
        read = any(reader.rank < op.rank for m in bucket for v in m.outputs["Out"] for reader in v.read_by)
        if bucket and (full or read):
            yield bucket
            bucket = open_buckets[op.inputs[slot][0].dtype, op.role] = []
        bucket.append(op)
    yield from open_buckets.values()


def _nbytes(op: OpNode, slot: str) -> int:
    return sum(v.type.nbytes for v in op.inputs[slot])


def _join(graph: Graph, members: Sequence[OpNode], slot: str, report: PassReport, sent: str | None) -> None:
    """Put one operator in the place of the last of these."""
    last, old, nbytes = members[-1], tuple(op.label() for op in members), sum(_nbytes(op, slot) for op in members)
    inputs = {s: [v for op in members for v in op.inputs[s]] for s in last.inputs}
    outputs = [v for op in members for v in op.outputs["Out"]]
    for op in members:
        graph.remove_op(op)
    made = outputs
    if sent is not None:
        inputs["X"] = [_cast(graph, last, v, graph.add_var(graph.fresh_name("bucket@GRAD"), v.type.with_dtype(
            as_dtype(sent))), report) for v in inputs["X"]]  # fmt: skip
        made = [graph.add_var(graph.fresh_name("bucket@GRAD"), v.type.with_dtype(as_dtype(sent))) for v in outputs]
    _put(graph, last, last.type, inputs, made, dict(last.attrs), report)
    if sent is not None:
        for narrow, out in zip(made, outputs, strict=True):
            _cast(graph, last, narrow, out, report)
    new = f"bucket of {len(members)}, {nbytes / MEGABYTE:.3g} MB{f' as {sent}' if sent else ''}"
    report.apply(Applied(RULE, new, old, last.site, last.role))


def _cast(graph: Graph, place: OpNode, x: VarNode, out: VarNode, report: PassReport) -> VarNode:
    _put(graph, place, "cast", {"X": [x]}, [out], get_op("cast").bind_attrs({"dtype": out.dtype}), report)
    return out


def _put(
    graph: Graph, place: OpNode, kind: str, inputs: dict[str, list[VarNode]], outputs: list[VarNode],
    attrs: dict[str, object], report: PassReport,
) -> None:  # fmt: skip
    """A new operator at the place of another."""
    graph.add_op(
        OpNode(
            get_op(kind), inputs, {"Out": outputs}, attrs, rank=(*place.rank, graph.ticket()), role=place.role,
            site=place.site, number=place.number, scope_name=place.scope_name, rewriter=report.name,
        )
    )  # fmt: skip
