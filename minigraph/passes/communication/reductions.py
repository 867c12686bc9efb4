"""Which operators reduce gradients, and whether each gradient is reduced as it must be."""

from __future__ import annotations

from minigraph.errors import VerifyError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.program.reductions import REDUCE, is_reduction


def reductions(graph: Graph) -> list[OpNode]:
    """What program/reductions.py put in and no pass has joined: each writes the next version of what it reads."""
    return [
        op for op in graph.ops_of(["c_allreduce_sum"])
        if is_reduction(op) and op.outputs["Out"][0].previous_version is op.inputs["X"][0]
    ]  # fmt: skip


def verify_reductions(graph: Graph) -> None:
    """Raise a VerifyError unless every gradient that an update reads was reduced once on its way.

    A program in which nothing is reduced is one of a single rank.
    """
    if not any(map(is_reduction, graph.ops_of(REDUCE))):
        return
    times: dict[VarNode, frozenset[int]] = {}  # how often what a value is made of was reduced
    for op in graph.ops:
        if "optimizer" in op.opdef.traits:
            _verify_update(op, times)
        found, more = _reduced(op, times), int(is_reduction(op))
        times.update((out, frozenset(n + more for n in found)) for out in op.output_vars)


def _verify_update(op: OpNode, times: dict[VarNode, frozenset[int]]) -> None:
    for param, grad in zip(op.inputs["Param"], op.inputs["Grad"], strict=True):
        found = times.get(grad) or {0}
        if found != {1}:
            shown = " and ".join(map(str, sorted(found)))
            raise VerifyError(
                f"{grad.name} is reduced {shown} times before {op.type} updates {param.name} with it, not once",
                call=op.call(), site=op.site, hint="that is a defect of a pass: report this program",
            )  # fmt: skip


PASSED_ON = (*REDUCE, "cast")  # operators of backward that are given gradients


def _reduced(op: OpNode, times: dict[VarNode, frozenset[int]]) -> frozenset[int]:
    """How often gradients that an operator reads were reduced; what others of backward make is new."""
    read = [v for v in op.input_vars if op.reads_values_of(v) and v in times]
    if op.role == "backward" and op.type not in PASSED_ON:
        return frozenset({0})
    return frozenset().union(*(times[v] for v in read))
