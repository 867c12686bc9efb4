"""fuse_all_reduce_ops: gradients are reduced in buckets, not one by one.

    a' = c_allreduce_sum(a), b' = c_allreduce_sum(b), ...
        ->  bucket = coalesce(a, b, ...);  sum = c_allreduce_sum(bucket);  a', b', ... = coalesce_grad(sum)

A bucket takes reductions of one data type in the order in which backward computes their gradients, so that the last
layer's travel while the others are computed, and ends where it has `size` megabytes, or where an update reads one of
them. It stands behind the last of its gradients. All of this follows from the program, so it is the same on all ranks.
Inside of a bucket the gradients lie in the order of the powers of two in their sizes: each begins at a multiple of
what its own size is a multiple of, and kernels find them aligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.types import TensorType, as_dtype

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
            _join(graph, members, report, all_reduce_dtype if narrow else None)
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


def _join(graph: Graph, members: Sequence[OpNode], report: PassReport, sent: str | None) -> None:
    """Put one reduction in the place of the last of these."""
    last, old = members[-1], tuple(op.label() for op in members)
    ordered = sorted(members, key=lambda op: -_power_of_two(op.inputs["X"][0].type.nbytes))
    given, results = [op.inputs["X"][0] for op in ordered], [op.outputs["Out"][0] for op in ordered]
    for op in members:
        graph.remove_op(op)
    flat = TensorType((sum(v.type.size for v in given),), given[0].dtype)
    value = _emit(graph, last, report, "coalesce", {"X": given}, flat)
    if sent is not None:
        narrow = flat.with_dtype(as_dtype(sent))
        value = _emit(graph, last, report, "cast", {"X": [value]}, narrow, dtype=narrow.dtype)
    value = _emit(graph, last, report, "c_allreduce_sum", {"X": [value]}, value.type)
    if sent is not None:
        value = _emit(graph, last, report, "cast", {"X": [value]}, flat, dtype=flat.dtype)
    opdef = get_op("coalesce_grad")
    graph.add_op(
        OpNode(
            opdef, {"X": given, "Out_grad": [value]}, {"X_grad": results}, {}, rank=(*last.rank, graph.ticket()),
            role=last.role, site=last.site, scope_name=last.scope_name, rewriter=report.name,
        )
    )  # fmt: skip
    new = f"bucket of {len(members)}, {flat.nbytes / MEGABYTE:.3g} MB{f' as {sent}' if sent else ''}"
    report.apply(Applied(RULE, new, old, last.site, last.role))


def _emit(
    graph: Graph, place: OpNode, report: PassReport, op_type: str, inputs: dict[str, list[VarNode]], type: TensorType,
    **attrs: object,
) -> VarNode:  # fmt: skip
    """A new operator at the place of another, and the value that it writes."""
    opdef = get_op(op_type)
    out = graph.add_var(graph.fresh_name("bucket@GRAD"), type)
    graph.add_op(
        OpNode(
            opdef, inputs, {"Out": [out]}, opdef.bind_attrs(attrs), rank=(*place.rank, graph.ticket()),
            role=place.role, site=place.site, scope_name=place.scope_name, rewriter=report.name,
        )
    )  # fmt: skip
    return out


def _power_of_two(nbytes: int) -> int:
    """The largest power of two that divides a number of bytes."""
    return nbytes & -nbytes if nbytes else 1 << 40
