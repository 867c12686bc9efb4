"""foreach_optimizer_ops: parameter updates become elementary operations, each on a whole list at once.

    momentum(Param=a, ...), momentum(Param=b, ...)
        ->  v = foreach_mul(v, mu); v = foreach_add(v, g); t = foreach_mul(v, rate); p = foreach_sub(p, t)

Between the level of one operator per parameter and that of one operator for all (fuse_all_optimizer_ops):
few launches, but every operation reads and writes its list. The operations are those of the
updates' own loops, so results are bit-equal. Groups are formed, and refused, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.kernels.trace import Symbol, leading_to, trace_loop, trace_numbers
from minigraph.kernels.updates import update_of
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import GraphBuilder
from minigraph.types import bfloat16, float16, float32, float64

from .optimizer_groups import UpdateGroup, find_groups, join_norms, replaced

RULE = "ForeachUpdates"
OPERATIONS = {
    "add": "foreach_add", "subtract": "foreach_sub", "multiply": "foreach_mul", "divide": "foreach_div",
    "maximum": "foreach_max", "sqrt": "foreach_sqrt", "absolute": "foreach_abs", "sign": "foreach_sign",
}  # fmt: skip
COMMUTATIVE = frozenset({"add", "multiply", "maximum"})

Lists = dict[str, Any]  # name -> list of variables, or a float


def foreach_optimizer_ops(graph: Graph, report: PassReport) -> int:
    """Norms first, then each group."""
    joined = join_norms(graph, report)
    groups = find_groups(graph, report, RULE)
    for group in groups:
        for op in group.ops:
            graph.remove_op(op)
        builder = GraphBuilder(graph, group.place, group.ops[-1], report.name)
        _Expansion(graph, group, builder).emit()
        replaced(graph, group, builder.emitted, report, RULE)
    return joined + len(groups)


class _Expansion:
    """The elementary operators of one group."""

    def __init__(self, graph: Graph, group: UpdateGroup, g: GraphBuilder) -> None:
        self.graph, self.group, self.g = graph, group, g
        self.first = group.ops[0]
        self.attrs = self.first.attrs
        self.update = update_of(self.first.type, self.attrs)
        self.low = group.column("Param")[0].type.dtype in (float16, bfloat16)

    def emit(self) -> None:
        """All operators, with those that write the group's results at the end of each chain."""
        group, g = self.group, self.g
        master = bool(group.column("MasterParam"))
        rate = self._as(group.column("LearningRate")[:1], float64)
        powers = {slot: group.column(slot) for slot in self.update.powers}
        formula = trace_numbers(lambda *given, **_: self.update.numbers(*given, **self.attrs), ("rate", *powers))
        numbers = self._run(leading_to(formula), {"rate": rate, **powers})
        values = [numbers[n.name] if isinstance(n, Symbol) else float(n) for n in formula]
        old = {s: group.column(s) for s in self.update.states}
        param = group.column("MasterParam" if master else "Param")
        old["p"] = self._as(param, float32) if self.low and not master else param
        arrays: Lists = {"g": self._gradient(old["p"]), **old}
        adapted = self.update.finish is not None
        known = values[:-1] if adapted else values
        names = ["g", "p", *self.update.states, *(["r"] if adapted else [])]
        arrays |= {f"k{i}": value for i, value in enumerate(known)}
        new = self._trace(self.update.loop, names, len(known), arrays)
        if adapted:
            assert self.update.finish is not None
            ratio = g.foreach_norm_ratio(old["p"], new["r"])
            size = self._apply("multiply", ratio, values[-1])
            new |= self._trace(self.update.finish, "gp", 1, {"g": new.pop("r"), "p": old["p"], "k0": size})
        betas = self.update.betas(self.attrs)
        for slot, beta in zip(self.update.powers, betas, strict=True):
            old[slot], new[slot] = powers[slot], g.foreach_mul(powers[slot], y=beta)
        self._store(old, new, master)

    def _gradient(self, param: list[VarNode]) -> list[VarNode]:
        """The gradients, scaled and decayed."""
        grads: Any = self.group.column("Grad")
        grads = self._as(grads, float32) if self.low else grads
        scale = [self.group.scale] if self.group.scale is not None else self.first.inputs.get("GradScale")
        if scale:
            grads = self.g.foreach_mul(grads, scale)
        if self.group.decay:
            grads = self.g.foreach_add(grads, self.g.foreach_mul(param, y=self.group.decay))
        return grads

    def _as(self, values: list[VarNode], dtype: Any) -> list[VarNode]:
        same = all(v.type.dtype == dtype for v in values)
        return values if same else self.g.foreach_cast(values, dtype=dtype)

    def _trace(self, loop: Any, names: Sequence[str], count: int, given: Lists) -> Lists:
        """The new value of each array that the loop changes."""
        steps, changed = trace_loop(loop, names, [f"k{i}" for i in range(count)])
        computed = self._run(steps, given)
        return {name: computed[value.name] for name, value in changed.items()}

    def _run(self, steps: Sequence[Symbol], given: Mapping[str, Any]) -> Lists:
        known = dict(given)
        for step in steps:
            operands = [known[o.name] if isinstance(o, Symbol) else float(o) for o in step.operands]
            known[step.name] = self._apply(step.operation, *operands)
        return known

    def _apply(self, operation: str, x: Any, y: Any = None) -> list[VarNode]:
        """One operation on lists; a list of one, and a number, meet every entry of the other."""
        emit = getattr(self.g, OPERATIONS[operation])
        if y is None:
            return emit(x)
        if isinstance(y, float):
            return x if y == 1 and operation == "multiply" else emit(x, y=y)
        if isinstance(x, float):
            return emit(y, y=x, reverse=operation not in COMMUTATIVE)
        swapped = len(x) < len(y) or (x[0].type.size == 1 and any(v.type.size != 1 for v in y))
        if swapped:
            return emit(y, x, reverse=operation not in COMMUTATIVE)
        return emit(x, y)

    def _store(self, old: Lists, new: Lists, master: bool) -> None:
        """Let the last operator of each chain write the group's own results."""
        skip = self.first.inputs.get("SkipUpdate")
        if skip:
            new = {name: self.g.foreach_where(skip[0], old[name], value) for name, value in new.items()}
        value = new.pop("p")
        if self.low:
            param = self.group.column("Param")
            rounded = self.g.foreach_cast(value, dtype=param[0].type.dtype)
            if skip and master:  # the parameter need not be the rounding of its copy yet
                rounded = self.g.foreach_where(skip[0], param, rounded)
            self._take_over(rounded, self.group.results("ParamOut"))
        if master or not self.low:
            self._take_over(value, self.group.results("MasterParamOut" if master else "ParamOut"))
        for slot, value in new.items():
            self._take_over(value, self.group.results(f"{slot}Out"))

    def _take_over(self, values: Sequence[VarNode], results: Sequence[VarNode]) -> None:
        """The operator that writes `values`, and all that read them, write and read `results`."""
        for v, result in zip(values, results, strict=True):
            writer: OpNode | None = v.producer
            assert writer is not None
            for reader in v.consumers:
                for slot, vs in reader.inputs.items():
                    for i in [i for i, x in enumerate(vs) if x is v]:
                        self.graph.set_input(reader, slot, i, result)
            for slot, vs in writer.outputs.items():
                for i in [i for i, x in enumerate(vs) if x is v]:
                    self.graph.set_output(writer, slot, i, result)
            self.graph.remove_var(v)
            self.g.created.remove(v)
