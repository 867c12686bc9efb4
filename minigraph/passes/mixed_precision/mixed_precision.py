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
        pass_ = _Rewrite(self, graph, report)
        if self.level == "O2":
            pass_.narrow_parameters()
        pass_.cast_inputs()
        return len(report.applied)

    def may_be_half(self, op: OpNode) -> bool:
        """Whether the lists, names and guards allow 16 bits."""
        if op.type in self.black or not (op.type in self.white or op.type in self.gray):
            return False
        if self.guard is not None and not any(f"{g}/" in op.scope_name for g in self.guard):
            return False
        return all(v.name not in self.black_names for v in (*op.input_vars, *op.output_vars))


class _Rewrite:
    """One run of the pass on one graph.

    typed  types as the user wrote them
    casts  what was cast so far, by value and type
    """

    def __init__(self, facts: MixedPrecision, graph: Graph, report: PassReport) -> None:
        self.facts, self.graph, self.report = facts, graph, report
        self.typed = {v: v.type for v in graph.vars.values()}
        self.casts: dict[tuple[VarNode, DType], VarNode] = {}

    def narrow_parameters(self) -> None:
        """Give 16 bits to parameters that an operator in 16 bits may read."""
        for op in self.graph.ops:
            if not self.facts.may_be_half(op) or not self._is_free(op):
                continue
            for slot, v in _floats(op):
                is_parameter = isinstance(v.source, Parameter) and v.given and v.next_version is None
                if is_parameter and v.type.dtype == float32 and slot not in KEPT_WIDE.get(op.type, ()):
                    v.type = v.type.with_dtype(self.facts.half)
                    self.facts.narrowed.add(v.name)

    def cast_inputs(self) -> None:
        """Decide for each operator in order, cast what it reads, and give its results their types."""
        rank: tuple[int, ...] = (-1,)
        for op in list(self.graph.ops):
            wanted = self._wanted(op)
            for slot, vs in op.inputs.items():
                for i, v in enumerate(vs):
                    dtype = wanted.get((slot, i))
                    if dtype is not None and v.type.dtype != dtype:
                        self.graph.set_input(op, slot, i, self._cast(v, dtype, op, rank))
            self._retype(op)
            rank = op.rank

    def _wanted(self, op: OpNode) -> dict[tuple[str, int], DType]:
        """{place of a float input: the type that it shall have}; what is not named stays as it is."""
        places = {(slot, i): v for slot, vs in op.inputs.items() for i, v in enumerate(vs) if v.type.is_float}
        if not places or op.type == "cast":
            return {}
        if not self._is_free(op):
            return {place: self.typed[v].dtype for place, v in places.items()}
        if not self._is_half(op):
            return dict.fromkeys(places, float32)
        kept = KEPT_WIDE.get(op.type, ())
        self.report.applied.append(
            Applied(f"{self.facts.level} {self.facts.half}", op.label(), (op.label(),), op.site, op.role)
        )
        return {(slot, i): self.facts.half for slot, i in places if slot not in kept}

    def _is_free(self, op: OpNode) -> bool:
        """Whether the types of its floats are not the user's own choice, nor what a Scope holds."""
        return all(self.typed[v].dtype == float32 for _, v in _floats(op)) and _may_change(op)

    def _is_half(self, op: OpNode) -> bool:
        """Whether it computes in 16 bits: a white one in any case, others where no activation has more."""
        if not self.facts.may_be_half(op):
            return False
        if op.type in self.facts.white:
            return True
        kept = KEPT_WIDE.get(op.type, ())
        floats = [v for slot, v in _floats(op) if slot not in kept and not self._is_small_constant(v)]
        own = [v for v in floats if not (v.given and v.persistable)]
        if any(v.type.dtype == float32 for v in own):
            return False
        return bool(own) or (self.facts.level == "O2" and bool(floats))

    def _is_small_constant(self, v: VarNode) -> bool:
        """Whether all its elements are one number that 16 bits can hold."""
        op = v.producer
        if op is None or op.type != "fill_constant" or not np.isfinite(op.attrs["value"]):
            return False
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(op.attrs["value"]).astype(self.facts.half)))

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
        """Give its results the types that its inputs lead to."""
        types = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
        for slot, vs in op.outputs.items():
            for v, inferred in zip(vs, types[slot], strict=True):
                if v.type.dtype != inferred.dtype:
                    v.type = v.type.with_dtype(inferred.dtype)


def _floats(op: OpNode) -> Iterator[tuple[str, VarNode]]:
    """(slot, value) of the float inputs."""
    return ((slot, v) for slot, vs in op.inputs.items() for v in vs if v.type.is_float)


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
