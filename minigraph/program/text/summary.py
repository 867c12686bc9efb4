"""Summary of a Program: what each operator computes, reads and writes, and the sums.

    print(program.summary())
    print(program.summary({"x": [256, 784]}))      sizes that the program leaves open
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minigraph.errors import require
from minigraph.errors.kinds import FEED_SHAPE, UNKNOWN_FEED
from minigraph.program.operator import Operator
from minigraph.program.variable import Parameter, Variable
from minigraph.types import TensorType

from .html import folded, table

HEADERS = ("operator", "output", "type", "parameters", "FLOPs", "bytes")
UNITS = ("", " k", " M", " G", " T", " P")


@dataclass(frozen=True)
class SummaryRow:
    """One operator.

    output      the name of its first output, and type: of that; "" and None where it has none
    parameters  elements of Parameters that no operator before has read
    flops       of a call: products exactly, 2 for a product and a sum; other operators one for each element of their
                largest float slot; None where a size is unknown
    nbytes      read and written; None where a size is unknown
    """

    op: Operator
    output: str
    type: TensorType | None
    parameters: int
    flops: int | None
    nbytes: int | None


@dataclass(frozen=True)
class Summary:
    """The rows of a program in order, and totals; print it, or let a notebook show it."""

    program: str
    rows: tuple[SummaryRow, ...]

    @property
    def parameters(self) -> int:
        return sum(r.parameters for r in self.rows)

    @property
    def flops(self) -> int | None:
        """Of one run; None where an operator's are unknown."""
        return _total(r.flops for r in self.rows)

    @property
    def nbytes(self) -> int | None:
        """Read and written by one run, if no two operators share a read; None where an operator's are unknown."""
        return _total(r.nbytes for r in self.rows)

    def cells(self) -> list[tuple[str, ...]]:
        """The rows as text, under HEADERS."""
        return [
            (r.op.type, r.output, str(r.type or ""), str(r.parameters or ""), amount(r.flops), amount(r.nbytes))
            for r in self.rows
        ]

    def totals(self) -> tuple[str, ...]:
        return f"{len(self.rows)} operators", "", "", str(self.parameters), amount(self.flops), amount(self.nbytes)

    def __str__(self) -> str:
        lines = [HEADERS, *self.cells(), self.totals()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEADERS))]
        texts = ["  ".join(map(_aligned, range(len(HEADERS)), line, widths)) for line in lines]
        rule = "-" * max(map(len, texts))
        return "\n".join([f"program {self.program}", texts[0], rule, *texts[1:-1], rule, texts[-1]])

    def _repr_html_(self) -> str:
        kinds: dict[str, list[tuple[str, ...]]] = {}
        for r, cells in zip(self.rows, self.cells(), strict=True):
            kinds.setdefault(r.op.role, []).append(cells)
        parts = "".join(
            folded(f"{role}: {len(cells)} operators", table(HEADERS, cells)) for role, cells in kinds.items()
        )
        return folded(f"program {self.program}", table(HEADERS, [self.totals()]) + parts, is_open=True)


def _aligned(column: int, cell: str, width: int) -> str:
    """Words at the left, numbers at the right."""
    return cell.ljust(width) if column < 3 else cell.rjust(width)


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(n for n in known if n is not None)


def amount(number: int | None) -> str:
    """`1.50 M`; `?` where it is unknown."""
    if number is None:
        return "?"
    value, unit = float(number), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number}" if unit == 0 else f"{value:.2f}{UNITS[unit]}"


def summary_of(
    name: str, ops: Sequence[Operator], variables: Mapping[str, Variable], feed: Mapping[str, Sequence[int]]
) -> Summary:
    """The Summary of operators in their order."""
    types = {v.name: v.type for v in variables.values()}
    for key, shape in feed.items():
        declared = types.get(key)
        require(declared is not None and variables[key].is_data, f"{key!r} is no data variable", UNKNOWN_FEED)
        assert declared is not None
        types[key] = declared.with_shape(int(n) for n in shape)
        require(declared.accepts(types[key]), f"{variables[key]} cannot have the shape {list(shape)}", FEED_SHAPE)
    read: set[str] = set()
    rows = []
    for op in ops:
        if feed:
            infer_outputs(op, types)
        rows.append(_row(op, types, read))
    return Summary(name, tuple(rows))


def infer_outputs(op: Operator, types: dict[str, TensorType]) -> None:
    """Put the types of its outputs, as they follow from those of its inputs, into `types`."""
    found = op.opdef.infer_types({slot: [types[v.name] for v in vs] for slot, vs in op.inputs.items()}, op.attrs)
    for slot, vs in op.outputs.items():
        for v, t in zip(vs, found.get(slot, ()), strict=False):
            if v.type.accepts(t):
                types[v.name] = t


def _row(op: Operator, types: Mapping[str, TensorType], read: set[str]) -> SummaryRow:
    """The row of an operator; `read` are the parameters that rows before have counted."""
    new = {v.name: v for v in op.input_vars if isinstance(v, Parameter) and v.name not in read}
    read.update(new)
    output = next(op.output_vars, None)
    name, type = (output.name, types[output.name]) if output is not None else ("", None)
    return SummaryRow(op, name, type, sum(max(types[n].size, 0) for n in new), *cost_of(op, types))


def cost_of(op: Operator, types: Mapping[str, TensorType]) -> tuple[int | None, int | None]:
    """(FLOPs, bytes) of a call as in SummaryRow. Inputs not in `types` have their own; no output is computed."""
    slots = {slot: [types.get(v.name, v.type) for v in vs] for slot, vs in op.inputs.items() if vs}
    shape_only = op.opdef.unread(op.outputs)
    touched = [t for slot, given in slots.items() if slot not in shape_only for t in given]
    for slot, vs in op.outputs.items():
        made = [types[v.name] for v in vs if v.name in types]
        touched += made
        slots |= {slot: made} if made else {}
    sizes = [t.nbytes for t in touched] if op.opdef.shows is None else []
    return _flops(op, slots), None if min(sizes, default=0) < 0 else sum(sizes)


def _flops(op: Operator, slots: Mapping[str, Sequence[TensorType]]) -> int | None:
    if not all(t.is_static for given in slots.values() for t in given):
        return None
    if op.opdef.flops_function is not None:
        return op.opdef.flops_function({slot: given[0] for slot, given in slots.items()}, op.attrs)
    if op.opdef.shows is not None or op.opdef.joins is not None:
        return 0
    return max((sum(t.size for t in given if t.is_float) for given in slots.values()), default=0)
