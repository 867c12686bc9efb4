"""The text form of a Program: one operator per line, greppable, parsed back by `ir/text.py`.

    program mlp
      data   x             : f32[4,8]
      param  fc.w_0        : f32[8,3]
    forward
      out : f32[4,3] = relu(X=x)
    backward
      x@GRAD : f32[4,8] = relu_grad(Out=out, Out_grad=out@GRAD) for out
    fetch out

`for out` links a grad operator to the forward operator that writes `out`; `for out.X` says besides
that its output is the gradient of that operator's slot X. Attributes with default values and
addresses never show, so equal programs have equal text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import Operator, Program, Variable

PLAIN_NAME = re.compile(r"[^\s\"',:;=(){}\[\]#]+")
KEYWORDS = frozenset({"program", "data", "param", "state", "const", "var", "forward", "backward", "optimize", "fetch", "for"})  # fmt: skip


def dump(program: Program, with_details: bool = False) -> str:
    """The text form; with_details ends each operator with the user's line as a comment."""
    declared = [v for v in program.vars.values() if _kind(v)]
    width = max((len(quote(v.name)) for v in declared), default=0)
    lines = [f"program {quote(program.name)}"]
    lines += [f"  {_kind(v):6} {quote(v.name):{width}} : {v.type}{_facts(v)}" for v in declared]
    writers = _writers(program)
    role = None
    for op in program.ops:
        if op.role != role:
            role = op.role
            lines.append(role)
        site = f"  # {op.site}" if with_details and op.site else ""
        lines.append(f"  {dump_op(op, writers)}{site}")
    lines += [f"fetch {quote(name)}" for name in program.fetched]
    return "\n".join(lines)


def dump_op(op: Operator, writers: dict[str, list[Operator]] | None = None) -> str:
    """One operator: `outputs : types = type(slot=inputs) {attrs} for <forward operator>`."""
    outputs = list(op.output_vars)
    plain = [s.name for s in op.opdef.outputs if s.name in op.outputs] == _default_outputs(op)
    names = ", ".join(quote(v.name) for v in outputs) if plain else _slots(op.outputs)
    types = ", ".join(str(v.type) for v in outputs)
    attrs = ", ".join(
        f"{name}={_attr(value)}"
        for name, value in op.attrs.items()
        if value != op.opdef.attrs[name].default or type(value) is not type(op.opdef.attrs[name].default)
    )
    left = f"{names} : {types} = " if outputs else ""
    return f"{left}{op.type}({_slots(op.inputs)})" + (f" {{{attrs}}}" if attrs else "") + _link(op, writers)


def quote(name: str) -> str:
    """A name as it is, or as a JSON string where it holds a character that the grammar uses."""
    if PLAIN_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return json.dumps(name)


def _kind(v: Variable) -> str:
    """data (fed), param (trained), state (other persistables), "" for what operators write."""
    if v.is_data:
        return "data"
    if v.persistable:
        return "param" if hasattr(v, "optimize_attr") else "state"
    return ""


def _facts(v: Variable) -> str:
    """` frozen` or ` live`, where stop_gradient is not what the kind of variable starts with."""
    usual = v.is_data
    return "" if v.stop_gradient == usual else (" frozen" if v.stop_gradient else " live")


def _default_outputs(op: Operator) -> list[str]:
    """The output slots a line stands for when it names none: those that are not optional."""
    return [s.name for s in op.opdef.outputs if not s.optional and not s.variadic]


def _slots(slots: dict[str, list[Any]]) -> str:
    return ", ".join(
        f"{slot}={quote(vs[0].name)}" if len(vs) == 1 else f"{slot}=[{', '.join(quote(v.name) for v in vs)}]"
        for slot, vs in slots.items()
    )


def _attr(value: Any) -> str:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value) if isinstance(value, float) else json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_attr(v) for v in value)}]"
    return str(value)  # a dtype


def _writers(program: Program) -> dict[str, list[Operator]]:
    writers: dict[str, list[Operator]] = {}
    for op in program.ops:
        for v in op.output_vars:
            writers.setdefault(v.name, []).append(op)
    return writers


def _link(op: Operator, writers: dict[str, list[Operator]] | None) -> str:
    if op.forward is None:
        return ""
    first = next(iter(op.forward.output_vars)).name
    ops = (writers or {}).get(first, [op.forward])
    position = next((i for i, writer in enumerate(ops) if writer is op.forward), 0)
    number = f"#{position}" if len(ops) > 1 else ""
    return f" for {quote(first)}{number}" + (f".{op.grad_slot}" if op.grad_slot else "")
