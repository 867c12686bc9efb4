"""mixed_precision: operators of float32 run in 16 bits where the lists say so, with casts between.

    matmul(X, Y)  ->  matmul(cast(X), cast(Y))       white: inputs are cast, the result has 16 bits
    relu(H)       ->  relu(H), H in 16 bits          gray: as the input
    log(H)        ->  log(cast(H, float32))          all others

A value is cast to a type once, and all readers share it: weights before all operators, other values
before their first reader.
Values keep their names and get the type in which they are computed. What the user typed himself, in
another type than float32 or by a cast, stays so. It stands before `append_backward`: the gradient of
a cast is a cast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.program import Parameter
from minigraph.types import DType, float32

from .lists import GRAY_O2, KEPT_WIDE

Place = tuple[str, int]  # an input: its slot, and where it stands there
NUMBERS = ("float", "float | None", "Number")  # kinds of attributes
BEHIND = 1 << 39  # in ranks: behind what stands at the place of an operator, before a stop of gradients


@dataclass
class MixedPrecision:
    """The pass, for one 16-bit type and level.

    half         float16 or bfloat16
    level        O1: by the lists; O2: parameters have 16 bits too, and only `black` operators compute in float32;
                 OD: only `white` operators compute in 16 bits
    black_names  variables whose operators compute in float32
    guard        name scopes in which operators may have 16 bits, all of them for None
    narrowed     names of the parameters that have 16 bits afterwards
    """

    half: DType
    level: str
    white: Collection[str]
    gray: Collection[str]
    black: Collection[str]
    black_names: Collection[str] = ()
    guard: Collection[str] | None = None
    narrowed: set[str] = field(default_factory=set)

    __name__ = "mixed_precision"

    def __call__(self, graph: Graph, report: PassReport) -> int:
        """Apply it; returns how many operators compute in 16 bits."""
        pass_ = _Retyping(self, graph, report)
        pass_.decide()
        if self.level == "O2":
            pass_.narrow_parameters()
        pass_.cast_inputs()
        return len(report.applied)

    def is_kept_wide(self, op: OpNode) -> bool:
        """Whether a list, a name or a guard keeps it in float32."""
        if op.type in self.black:
            return True
        if self.guard is not None and not any(f"{g}/" in op.scope_name for g in self.guard):
            return True
        return any(v.name in self.black_names for v in (*op.input_vars, *op.output_vars))


class _Retyping:
    """One run of the pass on one graph.

    typed   types as the user wrote them
    wanted  {operator: {place of a float input: the type that it shall have}}; other places stay as they are
    casts   what was cast so far, by value and type
    """

    def __init__(self, facts: MixedPrecision, graph: Graph, report: PassReport) -> None:
        self.facts, self.graph, self.report = facts, graph, report
        self.typed = {v: v.type for v in graph.variables}
        self.wanted: dict[OpNode, dict[Place, DType]] = {}
        self.casts: dict[tuple[VarNode, DType], VarNode] = {}

    def decide(self) -> None:
        """Say for each operator in order in which types it reads, and give its results theirs."""
        for op in self.graph.ops:
            self.wanted[op] = self._wanted(op)
            self._retype(op)

    def narrow_parameters(self) -> None:
        """Give 16 bits to parameters that an operator reads in 16 bits, and none reads that the user keeps wide."""
        ops = self.graph.ops
        wide = {v for op in ops if self.facts.is_kept_wide(op) for v in op.input_vars}
        for op in ops:
            for (slot, i), dtype in self.wanted[op].items():
                v = op.inputs[slot][i]
                is_parameter = isinstance(v.source, Parameter) and v.given and v.next_version is None
                if is_parameter and dtype == self.facts.half and v not in wide:
                    v.type = v.type.with_dtype(dtype)
                    self.facts.narrowed.add(v.name)

    def cast_inputs(self) -> None:
        """Cast what is read in another type than it has."""
        rank: tuple[int, ...] = (-1,)
        for op in list(self.graph.ops):
            for (slot, i), dtype in self.wanted[op].items():
                v = op.inputs[slot][i]
                if v.type.dtype != dtype:
                    self.graph.set_input(op, slot, i, self._cast(v, dtype, op, rank))
            rank = op.rank

    def _wanted(self, op: OpNode) -> dict[Place, DType]:
        places = {(slot, i): v for slot, vs in op.inputs.items() for i, v in enumerate(vs) if v.type.is_float}
        if not places or op.type == "cast":
            return {}
        if not self._is_free(op):
            return {place: self.typed[v].dtype for place, v in places.items()}
        if not self._is_half(op):
            return dict.fromkeys(places, float32)
        self.report.apply(
            Applied(f"{self.facts.level} {self.facts.half}", op.label(), (op.label(),), op.site, op.role)
        )
        kept = KEPT_WIDE.get(op.type, ())
        return {place: float32 if place[0] in kept else self.facts.half for place in places}

    def _is_free(self, op: OpNode) -> bool:
        """Whether the types of its floats are not the user's own choice, nor what a Scope holds."""
        return all(self.typed[v].dtype == float32 for _, v in _floats(op)) and _may_change(op)

    def _is_half(self, op: OpNode) -> bool:
        """Whether it computes in 16 bits: a white one in any case, a gray one where no activation has more.

        What is made of states alone, a learning rate or a momentum of averages, belongs to no activation.
        """
        facts = self.facts
        if facts.is_kept_wide(op):
            return False
        if op.type in facts.white:
            return True
        if op.type not in facts.gray or not all(self._holds(number) for number in _numbers(op)):
            return False
        kept = KEPT_WIDE.get(op.type, ())
        floats = [v for slot, v in _floats(op) if slot not in kept and not self._is_small_constant(v)]
        own = [v for v in floats if not (v.given and v.persistable)]
        if any(v.type.dtype == float32 for v in own):
            return False
        return bool(own) or (facts.level == "O2" and any(isinstance(v.source, Parameter) for v in floats))

    def _is_small_constant(self, v: VarNode) -> bool:
        """Whether all its elements are one number that 16 bits can hold."""
        op = v.producer
        return op is not None and op.type == "fill_constant" and self._holds(op.attrs["value"])

    def _holds(self, number: float) -> bool:
        """Whether 16 bits round it to no infinity."""
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(number).astype(self.facts.half))) or not np.isfinite(number)

    def _cast(self, v: VarNode, dtype: DType, reader: OpNode, rank: tuple[int, ...]) -> VarNode:
        """`v` in another type; made behind the operator of `rank` where it is the first time.

        Weights are cast before all operators, side by side: one launch can do it for all.
        """
        known = self.casts.get((v, dtype))
        if known is not None:
            return known
        if v.given and v.persistable and v.next_version is None:
            rank = (-1,)
        graph, opdef = self.graph, get_op("cast")
        result = graph.add_var(graph.fresh_name(f"{v.name}.cast_{dtype}"), v.type.with_dtype(dtype))
        graph.add_op(
            OpNode(
                opdef, {"X": [v]}, {"Out": [result]}, opdef.bind_attrs({"dtype": dtype}),
                rank=(*rank, BEHIND, graph.ticket()), site=reader.site, number=reader.number,
                scope_name=reader.scope_name, rewriter="mixed_precision",
            )
        )  # fmt: skip
        self.casts[v, dtype] = result
        return result

    def _retype(self, op: OpNode) -> None:
        """Give its results the types that its inputs lead to, once they are cast."""
        wanted = self.wanted[op]
        inputs = {
            slot: [v.type.with_dtype(wanted.get((slot, i), v.type.dtype)) for i, v in enumerate(vs)]
            for slot, vs in op.inputs.items()
        }
        types = op.opdef.infer_types(inputs, op.attrs)
        for slot, vs in op.outputs.items():
            for v, inferred in zip(vs, types[slot], strict=True):
                if v.type.dtype != inferred.dtype:
                    v.type = v.type.with_dtype(inferred.dtype)


def _floats(op: OpNode) -> Iterator[tuple[str, VarNode]]:
    """(slot, value) of the float inputs."""
    return ((slot, v) for slot, vs in op.inputs.items() for v in vs if v.type.is_float)


def _numbers(op: OpNode) -> Iterator[float]:
    """Attributes that are floats, such as bounds and factors."""
    kinds = op.opdef.attrs
    return (value for name, value in op.attrs.items() if value is not None and kinds[name].kind in NUMBERS)


def _may_change(op: OpNode) -> bool:
    """Whether its results may have another type: no Scope holds them, and no update in place joins versions."""
    return all(
        not v.persistable and v.previous_version is None and v.next_version is None
        and all(_may_change(reader) for reader in v.read_by if reader.type == "stop_gradient")
        for v in op.output_vars
    )  # fmt: skip


def gray_of(level: str, gray: Collection[str]) -> frozenset[str]:
    """The gray operators of a level: with O2 those that round only their results too, with OD none."""
    return frozenset(gray) | GRAY_O2 if level == "O2" else frozenset(gray if level == "O1" else ())
