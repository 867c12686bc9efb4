"""fuse_all_reduce_ops: gradients are reduced in buckets, not one by one.

    a' = c_allreduce_sum(a), b' = c_allreduce_sum(b), ...  ->  a', b', ... = c_allreduce_coalesced(a, b, ...)

A bucket takes reductions of one data type in the order in which backward computes their gradients, so that the last
layer's travel while the others are computed, and ends where it has `size` megabytes, or where an update reads one of
them. It stands behind the last of its gradients. All of this follows from the program, so it is the same on all ranks.
Plans lay the gradients of a bucket one behind the other in one piece of memory, in which they are computed, reduced
and read: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minigraph.ir.graph import Graph, OpNode
from minigraph.opdef import get_op
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.types import as_dtype

from .reductions import reductions
from .shards import join_shards

RULE = "Buckets"
MEGABYTE = 1 << 20


def fuse_all_reduce_ops(
    graph: Graph, report: PassReport, fuse_grad_size_in_MB: float = 32.0, all_reduce_dtype: str = "auto"
) -> int:
    """Join the reductions of gradients; `all_reduce_dtype` is the type in which they are sent, "auto" their own."""
    own = dict.fromkeys(reductions(graph))
    for op in graph.ops_of(["c_allreduce_sum"]):
        if op not in own:
            report.refuse(RULE, op.label(), "it reduces no gradient for an update", op.site)
    for members in list(_buckets(graph, fuse_grad_size_in_MB * MEGABYTE, report)):
        narrow = all_reduce_dtype != "auto" and members[0].inputs["X"][0].dtype != as_dtype(all_reduce_dtype)
        if len(members) > 1 or narrow:
            _join(graph, members, report, all_reduce_dtype if narrow else "auto")
        else:
            report.refuse(RULE, members[0].label(), "it is a bucket by itself", members[0].site)
    join_shards(graph, report, fuse_grad_size_in_MB * MEGABYTE, all_reduce_dtype)
    return len(report.applied)


def _buckets(graph: Graph, most: float, report: PassReport) -> Iterator[list[OpNode]]:
    """Reductions that can become one, in their order."""
    open_buckets: dict[object, list[OpNode]] = {}
    for op in reductions(graph):
        x = op.inputs["X"][0]
        if not x.type.is_static:
            report.refuse(RULE, op.label(), "its size is known only at run time", op.site)
            continue
        bucket = open_buckets.setdefault(x.dtype, [])
        full = sum(m.inputs["X"][0].type.nbytes for m in bucket) + x.type.nbytes > most
        read = any(reader.rank < op.rank for m in bucket for reader in m.outputs["Out"][0].read_by)
        if bucket and (full or read):
            yield bucket
            bucket = open_buckets[x.dtype] = []
        bucket.append(op)
    yield from open_buckets.values()


def _join(graph: Graph, members: Sequence[OpNode], report: PassReport, sent: str) -> None:
    """Put one reduction in the place of the last of these."""
    last, old, opdef = members[-1], tuple(op.label() for op in members), get_op("c_allreduce_coalesced")
    given, results = [op.inputs["X"][0] for op in members], [op.outputs["Out"][0] for op in members]
    for op in members:
        graph.remove_op(op)
    graph.add_op(
        OpNode(
            opdef, {"X": given}, {"Out": results}, opdef.bind_attrs({"sent": sent}), role=last.role, site=last.site,
            rank=(*last.rank, graph.ticket()), scope_name=last.scope_name, rewriter=report.name,
        )
    )  # fmt: skip
    nbytes = sum(v.type.nbytes for v in given)
    new = f"bucket of {len(members)}, {nbytes / MEGABYTE:.3g} MB{f' as {sent}' if sent != 'auto' else ''}"
    report.apply(Applied(RULE, new, old, last.site, last.role))
