"""ActivationCache: where forward rules tell backward rules what they can keep.

Key: the output of an activation that became part of a fused operator. Value: that operator's
ReserveSpace. It is created when the first reader asks, so each one has a reader. A compilation has
one such object and hands it to the rules that need it. Programs share nothing.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph, OpNode, VarNode

RESERVE = "ReserveSpace"


class ActivationCache:
    """Activation output -> the ReserveSpace of the fused operator that writes it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def producer(self, activation_out: VarNode) -> OpNode | None:
        """The fused operator whose activation output this is; None if there is none."""
        op = activation_out.producer
        fused = op is not None and RESERVE in op.opdef.output_names and op.attrs.get("activation") != "none"
        return op if fused else None

    def kept(self, activation_out: VarNode) -> VarNode | None:
        """The ReserveSpace that belongs to this output, None if none exists yet."""
        op = self.producer(activation_out)
        return op.outputs.get(RESERVE, [None])[0] if op is not None else None

    def reserve(self, activation_out: VarNode) -> VarNode:
        """The ReserveSpace that belongs to this output, created at the first request."""
        op = self.producer(activation_out)
        assert op is not None, f"{activation_out} is not the output of a fused activation"
        if RESERVE not in op.outputs:
            inferred = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
            name = self.graph.fresh_name(f"{activation_out.name}.reserve")
            self.graph.set_output(op, RESERVE, 0, self.graph.add_var(name, inferred[RESERVE][0]))
        return op.outputs[RESERVE][0]
