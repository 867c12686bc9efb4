"""Rewrites of a Program before its gradients exist; the user's Variables stay what they are.

    program --to_graph--> Graph --pass, verify--> ... --into_program--> the same program

BuildStrategy rewrites a copy when a program is compiled. This is for what must come before
`append_backward`: another precision, quantisation, operators whose gradients shall be others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from minigraph.errors import ProgramError, require
from minigraph.errors.kinds import NO_GRADIENT, ORDER, UNKNOWN_NAME
from minigraph.ir.convert import into_program, to_graph
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.ir.verify import verify
from minigraph.opdef import OpDef, get_op
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import Rule, apply_rule
from minigraph.program import Operator, Program, Variable
from minigraph.runtime.devices import RUNS_AT, backend_of

LAST = 1 << 40  # behind all that takes the place of an operator


def rewrite(
    program: Program, passes: Sequence[Rule | Callable[..., int]], keep: Iterable[Variable | str] = ()
) -> list[PassReport]:
    """Apply passes to `program` itself, in this order; returns a report of each.

    passes  Rules, or functions of a Graph and a PassReport as those of `minigraph.passes`
    keep    Variables or names that must exist afterwards
    Parameters, states, data, and values that no operator reads are kept in any case. Variables that
    stay are the same objects, so a loss can be fetched, differentiated and minimized afterwards.
    One that a rewrite took out is refused wherever it is used. Blocks of branches and loops are left as they are,
    which the reports say. Where anything is refused, nothing changes.
    """
    require(isinstance(program, Program), f"rewrite takes a Program, not {program!r}", ProgramError)
    rates = _rates(program)
    for op in program.ops:
        if (op.role != "forward" or op.forward is not None) and op not in rates:
            raise ORDER(
                f"program {program.name} has gradients or updates already", call=op.call(), site=op.site,
                hint="rewrite it before append_backward or minimize; later rewrites are flags of BuildStrategy",
            )
    graph = to_graph(program, _kept(program, keep))
    operators = dict(zip(graph.ops, program.ops, strict=True))
    graph.awaits_gradients, graph.on_gpu = True, backend_of(RUNS_AT.get()).is_gpu
    flow = _GradientFlow(graph)
    before = flow.into_kept(graph)
    for v in flow.stops:
        _put_stop(graph, v)
    reports = [_applied(each, graph) for each in passes]
    for op in graph.ops_of([STOP.type]):
        _take_stop_out(graph, op)
    verify(graph, "the last pass")
    flow.check_unchanged(before, graph)
    into_program(graph, program, operators)
    return reports


def _rates(program: Program) -> set[Operator]:
    """Operators of an update that come before it: counters of runs, and learning rates made of them and constants."""
    rates, known = set[Operator](), set[Variable]()
    for op in program.ops:
        if op.role == "optimize" and op.forward is None and all(v in known or _is_state(v) for v in op.input_vars):
            rates.add(op)
            known.update(op.output_vars)
    return rates


def _is_state(v: Variable) -> bool:
    return v.persistable and not v.is_parameter


def _kept(program: Program, keep: Iterable[Variable | str]) -> set[str]:
    """Names of what must exist afterwards."""
    require(not isinstance(keep, (str, Variable)), "keep is a list of variables or names", ProgramError)
    kept = set()
    for v in keep:
        is_known = v.block is program.global_block() if isinstance(v, Variable) else v in program.vars
        require(is_known, f"keep: {v!r} is no variable of program {program.name}", UNKNOWN_NAME)
        kept.add(v.name if isinstance(v, Variable) else v)
    read = {v.name for op in program.ops for v in op.input_vars}
    return kept | {v.name for op in program.ops for v in op.output_vars if v.name not in read}


def _applied(each: Rule | Callable[..., int], graph: Graph) -> PassReport:
    """The report of one rule or pass, after which the graph was verified."""
    name = each.name if isinstance(each, Rule) else getattr(each, "__name__", repr(each))
    report, start = PassReport(name), time.perf_counter()
    if isinstance(each, Rule):
        apply_rule(graph, each, report)
    else:
        each(graph, report)
    for op in graph.ops:
        if "control" in op.opdef.traits:
            report.refuse(name, op.label(), "its blocks are left as they are: build them after the rewrite", op.site)
    report.seconds = time.perf_counter() - start
    verify(graph, name)
    return report


# Where the user stops gradients


def stop_gradient(X):
    """X. No gradient flows through it; it stands in a Graph while passes run, so none looks through it."""
    return X


STOP = OpDef(stop_gradient, "Out", traits=("nondifferentiable", "side_effect"))


def _put_stop(graph: Graph, v: VarNode) -> None:
    """Let the writer of `v` write another value, and a stop make `v` of that."""
    op = v.producer
    assert op is not None
    inner = graph.add_var(graph.fresh_name(f"{v.name}.flowing"), v.type)
    slot, i = _position(op, v)
    graph.set_output(op, slot, i, inner)
    rank = (*op.rank, LAST + graph.ticket())
    graph.add_op(
        OpNode(
            STOP, {"X": [inner]}, {"Out": [v]}, {}, rank=rank, site=op.site, number=op.number,
            scope_name=op.scope_name,
        )
    )  # fmt: skip


def _position(op: OpNode, v: VarNode) -> tuple[str, int]:
    """Where an operator writes a value: slot, and index in it."""
    return next((slot, i) for slot, vs in op.outputs.items() for i, x in enumerate(vs) if x is v)


def _take_stop_out(graph: Graph, stop: OpNode) -> None:
    """Let the writer of its input write its output again; where others read that too, by one more operator."""
    (inner,), (v,) = stop.input_vars, stop.output_vars
    writer, before = inner.producer, v.previous_version
    earlier = before.users if before is not None else ()
    graph.remove_op(stop)
    alone = not inner.read_by and inner.source is None
    if writer is not None and alone and all(op.rank <= writer.rank for op in earlier):
        slot, i = _position(writer, inner)
        graph.set_output(writer, slot, i, v)
        graph.remove_var(inner)
        return
    is_constant = writer is not None and not writer.inputs and len(writer.outputs) == 1
    like, inputs = (writer, {}) if is_constant else (None, {"X": [inner]})
    opdef = like.opdef if like is not None else get_op("assign")
    attrs = dict(like.attrs) if like is not None else opdef.bind_attrs({})
    graph.add_op(
        OpNode(
            opdef, inputs, {"Out": [v]}, attrs, rank=stop.rank, site=stop.site, number=stop.number,
            scope_name=stop.scope_name,
        )
    )  # fmt: skip


class _GradientFlow:
    """Which parameters and live data the gradients of kept values can reach, by operators and stop_gradient.

    sources  {name: its bit}
    stops    values at which the user stops a gradient that would flow, or lets one begin
    """

    def __init__(self, graph: Graph) -> None:
        self.sources: dict[str, int] = {}
        self.stops: list[VarNode] = []
        for v in graph.variables:
            op = v.producer
            is_start = v.given if op is None else not op.opdef.differentiable
            if is_start and v.type.is_float and not _is_stopped(v):
                self.sources.setdefault(v.name, 1 << len(self.sources))
        self._bits(graph, self.stops)

    def into_kept(self, graph: Graph) -> dict[str, int]:
        """{name of a kept value: sources from which it is computed, as bits}."""
        bits = self._bits(graph, [])
        return {v.name: bits.get(v, 0) for v in graph.variables if v.pinned and v.next_version is None}

    def _bits(self, graph: Graph, stops: list[VarNode]) -> dict[VarNode, int]:
        """{value: sources}; `stops` is filled."""
        bits = {v: self.sources.get(v.name, 0) for v in graph.variables if v.given}
        for op in graph.ops:
            opdef, incoming = op.opdef, 0
            for v in op.input_vars if opdef.differentiable and opdef.grad_function is not None else ():
                incoming |= bits.get(v, 0)
            for v in op.output_vars:
                begins = 0 if opdef.differentiable else self.sources.get(v.name, 0)
                bits[v] = 0 if _is_stopped(v) or not v.type.is_float else incoming | begins
                if begins or (incoming and v.type.is_float and _is_stopped(v)):
                    stops.append(v)
        return bits

    def check_unchanged(self, before: dict[str, int], graph: Graph) -> None:
        """Refuse a rewrite through which a gradient would no longer flow, or would now."""
        after = self.into_kept(graph)
        for name, bits in before.items():
            other = bits ^ after.get(name, 0)
            if other:
                source = next(s for s, bit in self.sources.items() if bit & other)
                v = graph.newest[name]
                raise NO_GRADIENT(
                    f"after these passes the gradient of {name} would {'not ' if bits & other else ''}reach {source}",
                    site=v.producer.site if v.producer is not None else None,
                    hint="a pass put operators there that have no gradient; such passes are flags of BuildStrategy",
                )  # fmt: skip


def _is_stopped(v: VarNode) -> bool:
    return v.source is not None and v.source.stop_gradient
