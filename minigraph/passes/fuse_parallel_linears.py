"""fuse_parallel_linears: linear layers of one input become one product, their weights side by side.

    q, k, v = linear(X, Wq, Bq), linear(X, Wk, Bk), linear(X, Wv, Bv)
        ->  q, k, v = split(linear(X, concat(Wq, Wk, Wv), concat(Bq, Bk, Bv)))

An example are Q, K and V of attention. A GPU computes one wide product in less time than three narrow ones, and X's
gradient is one product instead of three whose results are added. Weights and their gradients are copied for that, which
pays where X has 1024 rows or more, and where a product alone does not fill the GPU. The joined weights are kept for
the gradient, which takes as much memory as they do. Results are not copied: refused where a reader, or what writes
their gradients, cannot take rows of the joined array where they lie. Among ranks the reductions of the weights'
gradients wait for the joined one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from operator import attrgetter
from typing import NamedTuple

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.program import GRAD_SUFFIX

from .engine.log import Applied, PassReport
from .engine.redirect import require_temporary
from .engine.rule import GraphBuilder, Refused, refuse_unless

RULE = "ParallelLinears"
ROWS = 1024  # of X: below, a product takes little longer than the copy of its weights
COLUMNS = 2048  # of the narrowest weight: above, each product fills a GPU by itself
PLAIN = {"trans_x": False, "activation": "none", "out_dtype": None, "activation_grad": "none"}


class GradSlots(NamedTuple):
    """Slots of the gradient of a linear layer: of the result, and of X, weight and bias."""

    out: str
    x: str
    weight: str
    bias: str | None


GRADIENTS = {
    "fused_gemm_epilogue": GradSlots("DOut", "DX", "DY", "DBias"),
    "matmul": GradSlots("Out_grad", "X_grad", "Y_grad", None),
}


def fuse_parallel_linears(graph: Graph, report: PassReport) -> int:
    """Apply the equation of this file to the linear layers of each value."""
    groups: dict[object, list[OpNode]] = defaultdict(list)
    for op in graph.ops_of(GRADIENTS):
        groups[op.inputs["X"][0], op.type, op.attrs["trans_y"], op.role].append(op)
    for ops in groups.values():
        if len(ops) > 1:
            try:
                report.apply(_Parallel(graph, ops, report.name).run())
            except Refused as no:
                report.refuse(RULE, ops[0].label(), str(no), ops[0].site)
    return len(report.applied)


class _Parallel:
    """Linear layers of one value on their way to being one."""

    def __init__(self, graph: Graph, ops: list[OpNode], rewriter: str) -> None:
        self.graph, self.ops, self.slots = graph, ops, GRADIENTS[ops[0].type]
        self.trans_y, self.axis = ops[0].attrs["trans_y"], 0 if ops[0].attrs["trans_y"] else 1
        self.grads = [grad for op in ops for grad in op.grads]
        self.forward = GraphBuilder(graph, ops[0].rank, ops[0], rewriter)
        last = max(self.grads, key=lambda grad: grad.rank, default=ops[-1])
        self.backward = GraphBuilder(graph, last.rank, last, rewriter)
        self.forward.forward, self.forward.layer = None, ops[0].layer

    def run(self) -> Applied:
        """Check, emit, exchange; refuses with the graph unchanged."""
        for op in self.ops:
            _check(op)
        weights = self._of(self.ops, "Y")
        refuse_unless(len({id(w) for w in weights}) == len(weights), "{} is the weight of two", weights[0].name)
        narrowest = min(w.type.shape[self.axis] for w in weights)
        refuse_unless(narrowest <= COLUMNS, "weights of {} columns each fill a GPU by themselves", narrowest)
        total = self._check_gradients() if self.grads else None
        try:
            pairs = self._emit()
            if self.grads:
                pairs += self._emit_gradients()
            late = self._late(pairs)
        except (Refused, MinigraphError) as no:
            self.backward.undo()
            self.forward.undo()
            raise Refused(no.fact if isinstance(no, MinigraphError) else str(no)) from None
        old, first, last = (*self.ops, *self.grads), self._of(self.ops, "Out", outputs=True)[0], self.ops[-1]
        self._name_new(first.name)
        entry = Applied(RULE, f"{first.name} = split", tuple(op.label() for op in old), last.site, last.role)
        for op in late:
            self.graph.move_op(op, (*self.backward.place, self.graph.ticket()))
        for op in reversed(old):
            self.graph.remove_op(op)
        for new, kept in pairs:
            self.graph.merge_var(new, kept)
        if total is not None:
            self._add_once(total)
        return entry

    def _of(self, ops: list[OpNode], slot: str | None, outputs: bool = False) -> list[VarNode]:
        """The value of each operator in this slot; none where they have none."""
        return [v for op in ops for v in (op.outputs if outputs else op.inputs).get(slot or "", ())]

    def _check_gradients(self) -> OpNode | None:
        """The operator that adds up the gradients of X; None where X has none."""
        slots = self.slots
        for op in self.ops:
            refuse_unless(len(op.grads) == 1, "{} has {} gradients", op, len(op.grads))
        for grad, op in zip(self.grads, self.ops, strict=True):
            refuse_unless(grad.type == f"{op.type}_grad" and not grad.grads, "{} is differentiated", grad)
            refuse_unless(_is_plain(grad), "{} does more than a linear layer", grad)
            refuse_unless(set(grad.outputs) == set(self.grads[0].outputs), "not all of them have the same gradients")
            _check_written(grad.inputs[slots.out][0], grad)
        parts = self._of(self.grads, slots.x, outputs=True)
        if not parts:
            return None
        adds = {reader for part in parts for reader in part.consumers}
        x = self.ops[0].inputs["X"][0]
        refuse_unless(len(adds) == 1, "gradients of {} are not added up by one operator", x.name)
        (total,) = adds
        refuse_unless(total.type == "sum" and not total.grads, "{} reads a gradient of X", total)
        once = all(sum(v is part for v in total.input_vars) == 1 for part in parts)
        refuse_unless(once, "{} does not add each gradient once", total)
        for part in parts:
            require_temporary(part)
        return total

    def _emit(self) -> list[tuple[VarNode, VarNode]]:
        """The new forward operators; (new value, the one whose name lives on)."""
        g, ops, outs = self.forward, self.ops, self._of(self.ops, "Out", outputs=True)
        weights, biases = self._of(ops, "Y"), self._of(ops, "Bias")
        joined = [g.concat(weights, axis=self.axis), *([g.concat(biases, axis=0)] if biases else [])]
        whole = g.emit(ops[0].type, ops[0].inputs["X"][0], *joined, trans_y=self.trans_y)
        whole = whole[0] if biases else whole
        parts = g.split(whole, sections=[v.type.shape[-1] for v in outs], axis=whole.type.ndim - 1)
        return list(zip(parts, outs, strict=True))

    def _emit_gradients(self) -> list[tuple[VarNode, VarNode]]:
        """Likewise of backward, but for the gradient of X."""
        g, slots, grads = self.backward, self.slots, self.grads
        *concats, product, split = self.forward.emitted
        needs = [*grads[0].outputs]
        given = {"X": product.inputs["X"][0], "Y": product.inputs["Y"][0]}
        g.forward = split
        given[slots.out] = g.concat(self._of(grads, slots.out), axis=split.attrs["axis"])
        g.emitted[-1].grad_slot = "X"
        g.forward = product
        g.emit(f"{product.type}_grad", needs=needs, trans_y=self.trans_y, **given)
        made, pairs = g.emitted[-1].outputs, list[tuple[VarNode, VarNode]]()
        for concat, slot in zip(concats, (slots.weight, slots.bias), strict=False):
            if slot in needs:
                g.forward = concat
                pieces = g.concat_grad(concat.inputs["X"], *made[slot], axis=concat.attrs["axis"])
                pairs += zip(pieces, self._of(grads, slot, outputs=True), strict=True)
        return pairs

    def _name_new(self, first: str) -> None:
        """Names for what is joined: of the first value in it."""
        for op in self.forward.emitted[:-1]:
            (v,) = op.output_vars
            base = op.inputs["X"][0].name if op.type == "concat" else first
            self.graph.rename_var(v, self.graph.fresh_name(f"{base}.joined"))
        for op in self.backward.emitted:
            for slot, vs in op.outputs.items() if op.type != "concat_grad" else ():
                base = {self.slots.weight: "Y", self.slots.bias: "Bias"}.get(slot)
                base = self._of(self.ops[:1], base)[0].name if base else op.inputs["X"][0].name
                base = base.removesuffix(GRAD_SUFFIX) + ".joined"
                gradient = op.type != "concat" or op.forward is not None
                self.graph.rename_var(vs[0], self.graph.fresh_name(base + GRAD_SUFFIX * gradient))

    def _late(self, pairs: list[tuple[VarNode, VarNode]]) -> list[OpNode]:
        """Collectives that must wait for gradients which are computed later now; refuses where another reader would."""
        late = dict[OpNode, None]()
        for new, old in pairs:
            for reader in old.consumers:
                if new.producer is None or reader.rank > new.producer.rank or reader in self.grads:
                    continue
                then = (c.rank for v in reader.output_vars for c in v.consumers)
                waits = "collective" in reader.opdef.traits and all(rank > new.producer.rank for rank in then)
                refuse_unless(waits, "{} is read earlier by {}", old.name, reader)
                late[reader] = None
        return sorted(late, key=attrgetter("rank"))

    def _add_once(self, total: OpNode) -> None:
        """Let the sum of X's gradients, whose operands are gone but for other readers of X, take the new one."""
        (new,) = next(op for op in self.backward.emitted if self.slots.x in op.outputs).outputs[self.slots.x]
        gone = [v for v in total.input_vars if v.producer is None and not v.given]
        operands = [v for v in total.input_vars if v not in gone]
        (out,) = total.output_vars
        self.graph.remove_op(total)
        if operands:
            inputs = {"X": [new, *operands]}
            again = OpNode(
                total.opdef, inputs, total.outputs, total.attrs, rank=total.rank, role=total.role,
                forward=total.forward, grad_slot=total.grad_slot, site=total.site, number=total.number,
                scope_name=total.scope_name, rewriter=total.rewriter,
            )  # fmt: skip
            self.graph.add_op(again)
        else:
            self.graph.merge_var(new, out)
        for v in gone:
            self.graph.remove_var(v)


def _check(op: OpNode) -> None:
    """Refuse what is no plain linear layer of enough rows, or whose result is not read by its rows."""
    x, y, out = op.inputs["X"][0], op.inputs["Y"][0], op.outputs["Out"][0]
    refuse_unless(_is_plain(op), "{} does more than a linear layer", op)
    refuse_unless(x.type.ndim >= 2 and y.type.ndim == 2, "{} is no product with a matrix", op)
    refuse_unless(y.type.is_static, "sizes of {} are known only at run time", y.name)
    refuse_unless(all(b.type.ndim == 1 for b in op.inputs.get("Bias", ())), "the bias of {} is no vector", op)
    rows = math.prod(max(size, 1) for size in x.type.shape[:-1])
    refuse_unless(rows >= ROWS, "{} has {} rows for certain, fewer than {}", x.name, rows, ROWS)
    require_temporary(out)
    _check_read(out)


def _is_plain(op: OpNode) -> bool:
    return all(op.attrs[name] == wanted for name, wanted in PLAIN.items() if name in op.attrs)


def _check_read(v: VarNode) -> None:
    """Refuse unless all readers of a result, behind changes of shape, take rows where they lie."""
    for reader in v.consumers:
        if not reader.reads_values_of(v):
            continue
        if reader.opdef.shows is not None:
            for shown in reader.output_vars:
                refuse_unless(shown.pinned is None, "{} is {}", shown.name, shown.pinned)
                _check_read(shown)
        else:
            whole = next((slot for slot, _ in v.read_by[reader] if slot not in reader.opdef.strided), None)
            refuse_unless(whole is None, "{} is read by {}, which would need a copy", v.name, reader)


def _check_written(v: VarNode, reader: OpNode) -> None:
    """Refuse unless the gradient of a result is for its layer alone, and its rows are written where they belong."""
    require_temporary(v)
    others = [c for c in v.consumers if c is not reader and c.reads_values_of(v)]
    refuse_unless(not others, "{} is also read by {}", v.name, others[0] if others else "")
    op = v.producer
    refuse_unless(op is not None, "{} is given, it would be copied", v.name)
    assert op is not None
    if op.opdef.shows is not None:
        (source,) = (x for x in op.input_vars if op.reads_values_of(x))
        return _check_written(source, op)
    slot = next(slot for slot, vs in op.outputs.items() if any(x is v for x in vs))
    refuse_unless(slot in op.opdef.strided, "{} is written by {}, it would be copied", v.name, op)
