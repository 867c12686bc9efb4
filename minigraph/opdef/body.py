"""Body: what a fused operator computes, as lines of text.

    t0 = elementwise_add(X=x0, Y=x1)
    y0, t1 = dropout(X=t0) {p=0.1} number 7
    y1 = sum(X=[y0, x2])

`x0, x1, ...` are the fused operator's inputs, `s0, ...` inputs of which only shape and type are used, `y0, ...` its
outputs. Other names are inner values, and `_` is an output that is not wanted. The number of a random member keys its
random numbers. A body may come from any text, so each line is checked against the definition of its operator.

    BodyLayout    how the values of a body lie beside each other: all have one shape, or one element for each row
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, MinigraphError, ShapeError, require
from minigraph.errors.kinds import BROADCAST, CONFLICT
from minigraph.types import TensorType, bfloat16, broadcast_shapes, float16, float32

from .opdef import OpDef, get_op

LINE = re.compile(
    r"(?P<outs>\w+(?:, \w+)*) = (?P<type>\w+)\((?P<args>[^()]*)\)"
    r"(?: \{(?P<attrs>[^{}]*)\})?(?: number (?P<number>\d{1,18}))?"
)
ARG = re.compile(r"(\w+)=(?:(\w+)|\[([\w, ]*)\])(?:, |$)")
ATTR = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\[\]]+)(?:, |$)")
ABSENT = "_"
NO_DEFAULT = inspect.Parameter.empty

Names = dict[str, list[str]]  # slot -> names
Shape = tuple[int, ...]


class Member(NamedTuple):
    """One operator of a body."""

    opdef: OpDef
    inputs: Names
    outputs: Names
    attrs: Mapping[str, Any]
    number: int = 0

    @property
    def read(self) -> list[str]:
        return [name for names in self.inputs.values() for name in names]

    @property
    def written(self) -> list[str]:
        return [name for names in self.outputs.values() for name in names]


def format_member(member: Member) -> str:
    """The line of a member."""
    opdef = member.opdef
    outs = [name for s in opdef.outputs for name in member.outputs.get(s.name) or [ABSENT]]
    args = [
        f"{s.name}={names[0]}" if not s.variadic else f"{s.name}=[{', '.join(names)}]"
        for s in opdef.inputs if (names := member.inputs.get(s.name))
    ]  # fmt: skip
    others = [(n, _word(value), a) for n, a in opdef.attrs.items() if (value := member.attrs[n]) is not a.default]
    shown = [f"{n}={word}" for n, word, a in others if a.default is NO_DEFAULT or word != _word(a.default)]
    attrs = f" {{{', '.join(shown)}}}" if shown else ""
    number = f" number {member.number}" if "random" in opdef.traits else ""
    return f"{', '.join(outs)} = {opdef.type}({', '.join(args)}){attrs}{number}"


def body_for_test(lines: Sequence[str]) -> tuple[str, ...]:
    """The body in its inference form: nothing is dropped, and running statistics are read and stay."""
    return tuple(
        format_member(member._replace(attrs={**member.attrs, "is_test": True})) if "is_test" in member.attrs else line
        for line, member in zip(lines, parse_body(tuple(lines)), strict=True)
    )


def _word(value: Any) -> str:
    if isinstance(value, np.dtype):
        return value.name
    return value if isinstance(value, str) else json.dumps(value)


@lru_cache(maxsize=4096)
def parse_body(lines: tuple[str, ...]) -> tuple[Member, ...]:
    """The members of a body in order; an AttrError names the line that is wrong."""
    members: list[Member] = []
    written: set[str] = set()
    for line in lines:
        try:
            member = _parse_line(line)
        except (MinigraphError, ValueError, RecursionError) as problem:
            fact = problem.fact if isinstance(problem, MinigraphError) else "a value cannot be read"
            raise AttrError(f"body line {line[:200]!r}: {fact}") from None
        for name in member.read:
            fine = name in written or re.fullmatch(r"[xs]\d+", name)
            require(fine, f"body line {line[:200]!r}: {name} has no value yet", AttrError)
        for name in member.written:
            fine = name not in written and not re.fullmatch(r"[xs]\d+", name)
            require(fine, f"body line {line[:200]!r}: {name} has a value already", AttrError)
            written.add(name)
        members.append(member)
    require(members, "body has no lines", AttrError)
    return tuple(members)


def _parse_line(line: str) -> Member:
    match = LINE.fullmatch(line)
    require(match is not None, "expected `outputs = operator(Slot=name, ...) {attribute=value, ...}`", AttrError)
    assert match is not None
    opdef = get_op(match["type"])
    inputs = {
        slot: [one] if one else [name for name in several.split(", ") if name]
        for slot, one, several in _parts(ARG, match["args"], "arguments")
    }
    opdef.check_inputs(inputs)
    given = {name: _value(text) for name, text in _parts(ATTR, match["attrs"] or "", "attributes")}
    names = match["outs"].split(", ")
    require(
        len(names) == len(opdef.outputs) and not any(s.variadic for s in opdef.outputs),
        f"{opdef.type} has the outputs {', '.join(opdef.output_names)}", AttrError,
    )  # fmt: skip
    outputs = {slot: [name] for slot, name in zip(opdef.output_names, names, strict=True) if name != ABSENT}
    return Member(opdef, inputs, outputs, opdef.bind_attrs(given), int(match["number"] or 0))


def _parts(pattern: re.Pattern[str], text: str, what: str) -> list[Any]:
    """All matches of `pattern`, which must cover `text`."""
    matches, at = [], 0
    while at < len(text):
        part = pattern.match(text, at)
        require(part is not None, f"cannot read the {what} {text[at:][:80]!r}", AttrError)
        assert part is not None
        matches.append(part.groups())
        at = part.end()
    names = [groups[0] for groups in matches]
    require(len(set(names)) == len(names), f"one of the {what} is given twice", CONFLICT)
    return matches


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        require(re.fullmatch(r"\w+", text), f"{text!r} is no value", AttrError)
        return text


def infer_body(
    members: Sequence[Member], x: Sequence[TensorType], shapes: Sequence[TensorType] = (), lifted: bool = False
) -> dict[str, TensorType]:
    """The types of all names, from the operators' own inference; `lifted` makes 16-bit floats float32."""
    types = {f"x{i}": t for i, t in enumerate(x)} | {f"s{i}": t for i, t in enumerate(shapes)}
    for m in members:
        for name in m.read:
            require(name in types, f"the body reads {name}, there are {len(x)} inputs and {len(shapes)} shapes")
        inferred = m.opdef.infer_types({s: [types[n] for n in names] for s, names in m.inputs.items()}, m.attrs)
        for slot, names in m.outputs.items():
            require(slot in inferred, f"{m.opdef.type} has no output {slot} here")
            for name, t in zip(names, inferred[slot], strict=True):
                types[name] = t.with_dtype(float32) if lifted and t.dtype in (float16, bfloat16) else t
    return types


def output_names(members: Sequence[Member]) -> list[str]:
    """`y0, y1, ...` as far as the body writes them."""
    written = {name for m in members for name in m.written}
    count = sum(bool(re.fullmatch(r"y\d+", name)) for name in written)
    names = [f"y{i}" for i in range(count)]
    require(count > 0 and written.issuperset(names), "a body writes y0, y1, ... without a gap", AttrError)
    return names


WHOLE, ROW, COLUMN, SUM = "whole", "row", "column", "sum"
POINTWISE = frozenset({"elementwise", "pointwise"})


@dataclass(frozen=True)
class BodyLayout:
    """How the values of a body lie in one array of `shape`.

    row    the first axis of a row, where members work on rows; else None
    kinds  of each name: whole (broadcasts to `shape`), row (one element for each row), column (one for each place in a
           row), sum (as column, summed over rows)
    """

    shape: Shape
    row: int | None
    kinds: dict[str, str]

    @property
    def row_shape(self) -> Shape | None:
        """The shape of whole values that have one element for each row."""
        return None if self.row is None else self.shape[: self.row] + (1,) * (len(self.shape) - self.row)


def is_pointwise(opdef: OpDef) -> bool:
    """Whether an element of the outputs depends on the inputs' elements at its place alone."""
    return not opdef.traits.isdisjoint(POINTWISE)


def places_y(member: Member, types: Mapping[str, TensorType]) -> bool:
    """Whether attribute `axis` places Y elsewhere than at X's last axes."""
    axis, y, x = member.attrs.get("axis", -1), member.inputs.get("Y"), member.inputs.get("X")
    if not is_pointwise(member.opdef) or axis == -1 or not x or not y:
        return False
    return types[y[0]].ndim < types[x[0]].ndim != axis + types[y[0]].ndim


def layout_of(members: Sequence[Member], types: Mapping[str, TensorType]) -> BodyLayout:
    """The BodyLayout of a body with these types; a MinigraphError says why there is none."""
    shape: Shape = ()
    row: int | None = None
    for m in members:
        rows, op_type = m.opdef.rows, m.opdef.type
        if rows is None:
            require(is_pointwise(m.opdef), f"{op_type} does not work element by element")
            if places_y(m, types):
                raise ShapeError(f"axis={m.attrs.get('axis')} places Y of {op_type} inside X")
            written = [types[name].shape for name in m.written]
            members_shape = broadcast_shapes(*(types[name].shape for name in m.read), *written)
            if written.count(members_shape) != len(written):
                raise BROADCAST(f"{op_type} sums where an operand was broadcast")
        else:
            first = types[m.inputs[m.opdef.row_slot][0]]
            start = rows.start(m.attrs, first.ndim)
            require(start is not None, f"{op_type} works on other axes than the last ones")
            if row not in (None, start):
                raise ShapeError(f"{op_type} works on rows from axis {start} on, others from {row} on")
            row, members_shape = start, first.shape
        shape = broadcast_shapes(shape, members_shape)
    layout = BodyLayout(shape, row, {})
    for m in members:
        for slot, names in (*m.inputs.items(), *m.outputs.items()):
            kind = WHOLE if m.opdef.rows is None else m.opdef.rows.kind(slot, m.attrs)
            for name in names:
                own = types[name].shape
                if kind == WHOLE and m.opdef.rows is not None and own != shape:
                    raise ShapeError(f"{m.opdef.type} works on {list(own)}, others on {list(shape)}")
                _settle(layout, name, kind, own)
        own = types[m.read[0]].shape if m.read else shape
        if "random" in m.opdef.traits and own != shape:  # draws are numbered by place in the operator's own shape
            raise ShapeError(f"{m.opdef.type} draws for {list(own)}, others compute {list(shape)}")
    for name, kind in layout.kinds.items():
        _check_kind(layout, name, kind, types[name].shape)
    return layout


def _settle(layout: BodyLayout, name: str, kind: str, own: Shape) -> None:
    """Note the kind of a name; one element for each row may also be seen as an array that broadcasts."""
    kinds = layout.kinds
    if kind == WHOLE and own == layout.row_shape != layout.shape:
        kind = ROW
    if kinds.setdefault(name, kind) != kind:
        raise ShapeError(f"{name} is used as {kinds[name]} and as {kind}")


def _check_kind(layout: BodyLayout, name: str, kind: str, own: Shape) -> None:
    shape = layout.shape
    if kind == WHOLE and own != shape:
        if broadcast_shapes(own, shape) != shape:
            raise ShapeError(f"{name} has shape {list(own)} beside {list(shape)}")
        if name.startswith("y"):
            raise ShapeError(f"{name} has shape {list(own)}, others {list(shape)}")


class FusedBody(NamedTuple):
    """A body for inputs of known types.

    types    of all names
    outputs  the names of the outputs in order
    layout   how the values lie beside each other; the reason, where they do not
    """

    members: tuple[Member, ...]
    types: Mapping[str, TensorType]
    outputs: Sequence[str]
    layout: BodyLayout | str


def fused_body(
    body: tuple[str, ...], x: tuple[TensorType, ...], like: tuple[TensorType, ...] = (), lifted: bool = False
) -> FusedBody:
    """The facts of a body that kernels need; `lifted` as in infer_body."""
    found = _fused_body if all(t.may_be_kept for t in (*x, *like)) else _fused_body.__wrapped__
    return found(body, x, like, lifted)


@lru_cache(maxsize=1024)
def _fused_body(
    body: tuple[str, ...], x: tuple[TensorType, ...], like: tuple[TensorType, ...], lifted: bool
) -> FusedBody:
    members = parse_body(tuple(body))
    types = infer_body(members, x, like, lifted)
    try:
        layout: BodyLayout | str = layout_of(members, types)
    except MinigraphError as problem:
        layout = problem.fact
    return FusedBody(members, types, output_names(members), layout)
