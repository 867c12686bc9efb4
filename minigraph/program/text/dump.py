"""The text form of a Program: one operator per line, greppable, parsed back by `ir/text.py`.

    program mlp
      data   x      : f32[4,8]
      param  fc.w_0 : f32[8,3] {learning_rate=0.5}
      state  rate   : f32[1]
    forward
      t   : f32[4,3] = matmul(X=x, Y=fc.w_0)
      out : f32[4,3] = relu(X=t)
    backward
      t@GRAD      : f32[4,3] = relu_grad(Out=out, Out_grad=out@GRAD) for out
      fc.w_0@GRAD : f32[8,3] = matmul(X=x, Y=t@GRAD) {trans_x=true} for Y of t
    optimize
      sgd(Param=fc.w_0, Grad=fc.w_0@GRAD, LearningRate=rate)
    fetch out

An operator that only updates persistable variables in place is written without its outputs.
Variables that exist before the first operator are declared: `data` is fed, `param` is trained,
`state` is any other persistable. `var` declares a temporary that the operators' lines do not tell:
one that is not written before it is read, or that is `frozen` (stop_gradient) by hand. Data and states are frozen
unless the line says `live`.

    for out        the grad operator of the forward operator that writes `out`; `out#1` is the second
                   operator that writes it, `for Y of out` computes the gradient of its slot Y
    in encoder/    built inside name_scope("encoder")
    number 7       keys the operator's random numbers, where it is not its position

The blocks of an operator (`cond`, `while_loop`) follow its line, each with its own declarations: data are what
it takes beside what it reads in the Scope, `fetch` lines are what it returns.

    out : f32[4] = cond(Pred=p, Input=[x, w])
    block true_block cond_0.true
        data  x : f32[4]
        param w : f32[4]
      forward
        t : f32[4] = elementwise_mul(X=x, Y=w)
      fetch t
    end
    block false_block cond_0.false
        ...
    end

Attributes with default values and addresses never show, so equal programs have equal text. Python
objects that act on a program from outside (learning-rate schedulers, regularizers) are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from minigraph.opdef.host_function import HostFunction
from minigraph.opdef.inner import InnerBlock
from minigraph.program.blocks.held import sub_programs

from .grammar import DECLARATIONS, PARAMETER_FACTS, quote

if TYPE_CHECKING:
    from minigraph.opdef import OpDef
    from minigraph.program.program import Operator, Program, Variable

WIDEST_NAMES, WIDEST_TYPES = 36, 20  # columns are aligned up to this width; longer text sticks out

Parts = tuple[str, str, str]  # output names, their types, the call


def dump(program: Program, with_details: bool = False) -> str:
    """The text form; with_details ends each operator with the user's line as a comment."""
    seed = f" seed {program.random_seed}" if program.random_seed else ""
    return "\n".join([f"program {quote(program.name)}{seed}", *_body(program, with_details)])


def _body(program: Program, with_details: bool) -> list[str]:
    """All lines but the first one."""
    lines = declaration_lines(program)
    writers = writers_of(program)
    section: list[Parts] = []
    inner: list[list[str]] = []  # lines of the blocks behind each line of the section
    role = None

    def end_section() -> None:
        for line, blocks in zip(aligned(section), inner, strict=True):
            lines.append(line)
            lines.extend(blocks)

    for position, op in enumerate(program.ops):
        if op.role != role:
            end_section()
            section, inner, role = [], [], op.role
            lines.append(role)
        outputs, types, call = op_parts(op)
        site = f"  # {op.site}" if with_details and op.site else ""
        section.append((outputs, types, f"{call}{_tail(op, position, writers)}{site}"))
        inner.append(_block_lines(op, with_details))
    end_section()
    lines += [f"fetch {quote(name)}" for name in program.fetched]
    return lines


def _block_lines(op: Operator, with_details: bool) -> list[str]:
    """The blocks that an operator holds, indented."""
    lines = []
    for _, name, sub in sub_programs([op]):
        lines.append(f"  block {name} {quote(sub.name)}")
        lines += [f"    {line}" for line in _body(sub, with_details)]
        lines.append("  end")
    return lines


def dump_op(op: Operator) -> str:
    """One operator: `outputs : types = type(slot=inputs) {attrs}`."""
    outputs, types, call = op_parts(op)
    return f"{outputs} : {types} = {call}" if outputs else call


def op_parts(op: Operator) -> Parts:
    """Output names, their types, and the call."""
    opdef = op.opdef
    inputs, outputs = _in_order(op.inputs, opdef.inputs), _in_order(op.outputs, opdef.outputs)
    if _slots(outputs) == _slots(updates(opdef, inputs)):
        outputs = {}
    variables = [v for vs in outputs.values() for v in vs]
    plain = [slot for slot, vs in outputs.items() for _ in vs] == unnamed_outputs(opdef, len(variables))
    names = ", ".join(quote(v.name) for v in variables) if plain else _slots(outputs)
    attrs = _attrs({
        name: (op.attrs[name], attr.default) for name, attr in opdef.attrs.items()
        if not isinstance(op.attrs[name], InnerBlock)
    })  # fmt: skip
    return names, ", ".join(str(v.type) for v in variables), f"{op.type}({_slots(inputs)}){attrs}"


def declaration_lines(program: Program) -> list[str]:
    """The lines of `data`, `param`, `state` and `var`."""
    declared = _declarations(program)
    width = max((n for v, _ in declared if (n := len(quote(v.name))) <= WIDEST_NAMES), default=0)
    return [f"  {kind:6} {quote(v.name):{width}} : {v.type}{_facts(v, kind)}" for v, kind in declared]


def aligned(lines: list[Parts]) -> list[str]:
    """Operators with their ` : ` and ` = ` below each other."""
    inside = [(outputs, types) for outputs, types, _ in lines if len(outputs) <= WIDEST_NAMES]
    names = max((len(outputs) for outputs, _ in inside), default=0)
    width = max((len(types) for _, types in inside if len(types) <= WIDEST_TYPES), default=0)
    texts = []
    for outputs, types, call in lines:
        right = f"{types:{width}}" if len(outputs) <= WIDEST_NAMES else types
        texts.append(f"  {outputs:{names}} : {right} = {call}" if outputs else f"  {call}")
    return texts


def writers_of(program: Program) -> dict[str, list[Operator]]:
    """The operators that write each variable, in order."""
    writers: dict[str, list[Operator]] = {}
    for op in program.ops:
        for v in op.output_vars:
            writers.setdefault(v.name, []).append(op)
    return writers


def unnamed_outputs(opdef: OpDef, number: int) -> list[str]:
    """The output slots that a line stands for when it lists `number` outputs without naming slots.

    All slots, or all but the optional ones; the one list slot of an operator like split.
    """
    slots = opdef.outputs
    if len(slots) == 1 and slots[0].variadic:
        return [slots[0].name] * number
    fitting = [s.name for s in slots if not s.variadic and (len(slots) == number or not s.optional)]
    return fitting if len(fitting) == number else []


def updates(opdef: OpDef, inputs: Mapping[str, list[Variable]]) -> dict[str, list[Variable]]:
    """The outputs that a line without them stands for: updates in place of persistable inputs."""
    updated = {s.name: inputs[opdef.inplace[s.name]] for s in opdef.outputs if opdef.inplace.get(s.name) in inputs}
    return updated if all(v.persistable for vs in updated.values() for v in vs) else {}


def first_output(op: Operator) -> str:
    """The name by which lines refer to an operator."""
    return next(v.name for s in op.opdef.outputs for v in op.outputs.get(s.name, ()))


def born_frozen(opdef: OpDef, role: str) -> bool:
    """The stop_gradient of a new variable that such an operator writes."""
    return role != "backward" and not opdef.differentiable


def _declarations(program: Program) -> list[tuple[Variable, str]]:
    """(variable, kind) of all variables that need a line of their own."""
    frozen: dict[str, bool] = {}  # the usual stop_gradient of what operators write
    early = set()
    for op in program.ops:
        early.update(v.name for v in op.input_vars if v.name not in frozen)
        for v in op.output_vars:
            frozen.setdefault(v.name, born_frozen(op.opdef, op.role))
    declared = []
    for v in list(program.vars.values()):  # to which another thread may add
        if v.is_data or v.persistable:
            declared.append((v, "data" if v.is_data else "param" if hasattr(v, "optimize_attr") else "state"))
        elif v.name in early or v.name not in frozen or v.stop_gradient != frozen[v.name]:
            declared.append((v, "var"))
    return declared


def _facts(v: Any, kind: str) -> str:
    """` frozen` or ` live` where its kind does not say it, and what only a Parameter has."""
    facts = "" if v.stop_gradient == DECLARATIONS[kind] else (" frozen" if v.stop_gradient else " live")
    if v.is_data and v.persistable:
        facts += " persistable"
    if kind != "param":
        return facts
    own = {"learning_rate": v.optimize_attr["learning_rate"], "need_clip": v.need_clip}
    return facts + _attrs({name: (own[name], usual) for name, usual in PARAMETER_FACTS.items()})


def _in_order(slots: Mapping[str, list[Any]], order: Iterable[Any]) -> dict[str, list[Any]]:
    """The slots that hold something, in the order of the operator's definition."""
    return {s.name: slots[s.name] for s in order if slots.get(s.name)}


def _slots(slots: Mapping[str, list[Any]]) -> str:
    return ", ".join(
        f"{slot}={quote(vs[0].name)}" if len(vs) == 1 else f"{slot}=[{', '.join(quote(v.name) for v in vs)}]"
        for slot, vs in slots.items()
    )


def _attrs(attrs: Mapping[str, tuple[Any, Any]]) -> str:
    """` {name=value, ...}` of the (value, default) pairs that differ as text."""
    texts = {name: _attr(value) for name, (value, default) in attrs.items() if _attr(value) != _attr(default)}
    return f" {{{', '.join(f'{name}={text}' for name, text in texts.items())}}}" if texts else ""


def _attr(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, (bool, int, str)) or value is None:
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_attr(v) for v in value)}]"
    if isinstance(value, HostFunction):
        return json.dumps(value.name, ensure_ascii=False)
    return str(value)  # a dtype


def _tail(op: Operator, position: int, writers: dict[str, list[Operator]]) -> str:
    """The text behind the call: the forward operator, the name scope, the number."""
    tail = ""
    if op.forward is not None:
        first = first_output(op.forward)
        same = writers.get(first, [op.forward])
        number = f"#{next(i for i, other in enumerate(same) if other is op.forward)}" if len(same) > 1 else ""
        tail = f" for {f'{op.grad_slot} of ' if op.grad_slot else ''}{quote(first)}{number}"
    if op.scope_name:
        tail += f" in {quote(op.scope_name)}"
    if "random" in op.opdef.traits and op.number != position:
        tail += f" number {op.number}"
    return tail
