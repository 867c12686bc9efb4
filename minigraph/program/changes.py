"""A Program's parts that count their changes, so that what was made of an older state is not used again.

    Ops     the operators of a Block; a changed list is one of operators of that Block
    Vars    its variables by name; what operators use stays
    Attrs   attributes of an operator; a change is checked as when the operator was built
    FixedSlots  inputs and outputs of an operator; these do not change, but by `rename`

Reading costs what it costs with a list or a dict. Each change is made whole or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from minigraph.errors import MinigraphError, ProgramError, require, shortened
from minigraph.errors.kinds import UNKNOWN_NAME

from . import unique_name
from .blocks.held import adopt, check_takes_the_same, stand_ins, sub_programs
from .variable import Variable, set_facts
from .whole.changing import ONE_CHANGE

if TYPE_CHECKING:
    from .block import Block
    from .operator import Operator

LIST_CHANGES = (
    "__delitem__", "__iadd__", "__imul__", "__setitem__", "append", "clear", "extend", "insert", "pop", "remove",
    "reverse", "sort",
)  # fmt: skip
BEFORE_BACKWARD = "change the program before append_backward or minimize, or in a clone(for_test=True)"
DICT_CHANGES = ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update")


class Ops(list[Any]):
    """The operators of a Block in order."""

    __slots__ = ("block",)

    def __init__(self, block: Block) -> None:
        self.block = block

    def _change(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with ONE_CHANGE:
            self.block.program.check_free()
            after = list(self)
            result = method(after, *args, **kwargs)
            self.become(after)
        return self if method in (list.__iadd__, list.__imul__) else result

    def add(self, op: Operator, new: Sequence[Variable]) -> None:
        """Put a checked operator at the end, and its new variables into the Block. Ask under ONE_CHANGE."""
        block = self.block
        if block.program.is_closed:
            check_has_no_gradient(block)
        block.program.adding(op, *new)
        op.seal()
        dict.update(block.vars, {v._name: v for v in new})  # nothing else changes
        list.append(self, op)

    def become(self, after: Sequence[Operator]) -> None:
        """Let these be the operators, if they are fit to be."""
        check_has_no_gradient(self.block)
        before = {id(op) for op in self}
        for op in after:
            if getattr(op, "block", None) is not self.block:
                foreign = hasattr(op, "opdef")
                raise ProgramError(
                    f"{op.type} belongs to another program" if foreign else f"{shortened(repr(op))} is no Operator",
                    hint="block.append_op(type, inputs, outputs, attrs) makes one here",
                )
        left = {id(op): op for op in after}
        require(len(left) == len(after), "an operator stands twice in the list", ProgramError)
        for op in left.values():
            gone = op.forward is not None and id(op.forward) in before and id(op.forward) not in left
            require(
                not gone, f"{op.type} is a gradient of {op.forward and op.forward.call()}, which would be removed",
                ProgramError, "remove its gradient with it, or change the program before append_backward",
            )  # fmt: skip
        for op in after:
            op.seal()
        list.__setitem__(self, slice(None), after)
        self.block.program.version += 1


class Vars(dict[str, Any]):
    """The variables of a Block by name."""

    __slots__ = ("block",)

    def __init__(self, block: Block) -> None:
        self.block = block

    def _change(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with ONE_CHANGE:
            self.block.program.check_free()
            after = dict(self)
            result = method(after, *args, **kwargs)
            for name, v in after.items():
                fits = isinstance(v, Variable) and v.block is self.block and v.name == name
                require(
                    fits, f"{shortened(repr(v))} is no variable of this block called {shortened(repr(name))}",
                    UNKNOWN_NAME, "block.create_var(name, shape, dtype) makes one; variable.name = ... renames it",
                )  # fmt: skip
            for op in self.block.ops:
                for v in (*op.input_vars, *op.output_vars):
                    require(
                        after.get(v.name) is v, f"{op.call()} uses {v}, it cannot be removed", ProgramError,
                        "remove the operator first",
                    )  # fmt: skip
            if _taken(after) != _taken(self):
                check_takes_the_same(self.block, "this change of its variables")
            dict.clear(self)
            dict.update(self, after)
            self.block.program.version += 1
        return self if method is dict.__ior__ else result

    def rename(self, old: str, new: str) -> None:
        """Give a variable another name; one that a block takes keeps its place, which is that of its value."""
        variable, program = self[old], self.block.program
        set_facts(variable, {"_name": new})
        if old in program.fetched:
            program.fetched = tuple(new if name == old else name for name in program.fetched)
        if variable.is_data or variable.persistable:
            after = {new if name == old else name: v for name, v in self.items()}
            dict.clear(self)
            dict.update(self, after)
        else:
            dict.pop(self, old)
            dict.__setitem__(self, new, variable)


def _taken(variables: Mapping[str, Variable]) -> list[str]:
    """Those that a block takes, in order."""
    return [name for name, v in variables.items() if v.is_data or v.persistable]


class Attrs(dict[str, Any]):
    """The attributes of an operator that stands in a Block, all of them, in canonical form."""

    __slots__ = ("op",)

    def _change(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with ONE_CHANGE:
            self.op.block.program.check_free()
            after = dict(self)
            result = method(after, *args, **kwargs)
            self.become(after)
        return self if method is dict.__ior__ else result

    def become(self, after: Mapping[str, Any]) -> None:
        """Let these be the attributes; those that are left out get their defaults."""
        op = self.op
        try:
            bound = op.opdef.bind_attrs(after)
            if repr(bound) == repr(dict(self)):  # unlike ==, it tells 0.0 from -0.0 and 1 from True
                return
            _check_no_gradient(op)
            _check_types(op, op.inputs, op.outputs, bound)
            adopt(op.block.program, op.opdef, bound)
        except MinigraphError as error:
            raise error.at(op.call(), None) from None
        dict.update(self, bound)
        op.block.program.version += 1


class FixedSlots(dict[str, Any]):
    """The variables of an operator that stands in a Block, by slot."""

    __slots__ = ()

    def _change(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_slots()


class SlotVars(list[Any]):
    """The variables in one slot."""

    __slots__ = ()

    def _change(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_slots()


def fixed(slots: dict[str, list[Variable]]) -> FixedSlots:
    """Slots of an operator that comes to stand in a Block; operators may share them, since they do not change."""
    if type(slots) is FixedSlots:
        return slots
    return FixedSlots({slot: SlotVars(vs) for slot, vs in slots.items()})


def attrs_of(op: Operator) -> Attrs:
    """The attributes of an operator that stands in a Block."""
    assert isinstance(op.attrs, Attrs)
    return op.attrs


def rename(op: Operator, what: str, old: str, new: str) -> None:
    """Let `op` use the variable called `new` in the place of `old`; what is "inputs" or "outputs"."""
    held, variable = getattr(op, what), op.block.var(new)
    known = {v.name for vs in held.values() for v in vs}
    require(old in known, f"{op.type} has no {old!r} among its {what}: {', '.join(sorted(known))}", UNKNOWN_NAME)
    changed = {slot: [variable if v.name == old else v for v in vs] for slot, vs in held.items()}
    both = {"inputs": op.inputs, "outputs": op.outputs} | {what: changed}
    try:
        _check_no_gradient(op)
        _check_types(op, both["inputs"], both["outputs"], op.attrs)
    except MinigraphError as error:
        raise error.at(op.call(), None) from None
    object.__setattr__(op, what, FixedSlots((slot, SlotVars(vs)) for slot, vs in changed.items()))
    op.block.program.version += 1


def rename_variable(v: Variable, new: str) -> None:
    """Give a variable another name, also in blocks of branches and loops that read a persistable one in the Scope."""
    with ONE_CHANGE:
        v.program.check_free()
        v.block.vars.rename(v.name, new)
        v.program.version += 1
    if not v.persistable:
        return
    holders = [op for op in v.block.ops if op.opdef.blocks]
    for inner in [own for op in holders for outer, own in stand_ins(op) if outer is v and own.persistable]:
        other = inner.block.vars.get(new)
        if other is inner:  # of a block that a loop and its gradient hold
            continue
        if other is not None:
            rename_variable(other, unique_name.generate(new))
        rename_variable(inner, new)


def put_in_place(op: Operator, old: Variable, new: Variable) -> None:
    """Let `op` use `new`, of the same type, in the place of `old`."""
    for what in ("inputs", "outputs"):
        held = getattr(op, what)
        if any(v is old for vs in held.values() for v in vs):
            changed = ((slot, SlotVars(new if v is old else v for v in vs)) for slot, vs in held.items())
            object.__setattr__(op, what, FixedSlots(changed))


def _check_types(op: Operator, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """As when the operator was built: what these inputs give fits the variables that it writes."""
    inferred = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in inputs.items()}, attrs)
    for slot, variables in outputs.items():
        types = inferred.get(slot) or []
        require(len(types) == len(variables), f"output {slot} would have {len(types)} values", ProgramError)
        for v, t in zip(variables, types, strict=True):
            require(v.type.accepts(t), f"output {slot} would be {t}, variable {v} does not fit")


def _check_no_gradient(op: Operator) -> None:
    """Neither does another operator compute the gradient of this one as it is, nor this one another's."""
    linked = op.forward is not None or any(other.forward is op for other in op.block.ops)
    require(
        not linked, f"{op.type} and its gradient would no longer belong together", ProgramError,
        BEFORE_BACKWARD,
    )  # fmt: skip
    check_has_no_gradient(op.block)


def check_has_no_gradient(block: Block) -> None:
    """No operator around this block of a branch or loop has a gradient, which computes with a copy of the block."""
    inner = block.program
    while (outer := inner.parent) is not None:
        for op in [op for op, _, sub in sub_programs(outer.ops) if sub is inner]:
            linked = op.forward is not None or any(other.forward is op for other in outer.ops)
            require(
                not linked, f"{inner.name} is a block of {op.type}, whose gradient would be that of the block before",
                ProgramError, BEFORE_BACKWARD,
            )  # fmt: skip
        inner = outer


def _refuse_slots() -> NoReturn:
    raise ProgramError(
        "inputs and outputs of an operator cannot be changed in place",
        hint="op._rename_input(old, new) and op._rename_output(old, new) do, or remove the operator and append another",
    )


def _counted(name: str, base: type) -> Callable[..., Any]:
    method = getattr(base, name)

    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._change(method, *args, **kwargs)

    change.__name__ = name
    return change


for _kind, _base, _names in (
    (Ops, list, LIST_CHANGES), (SlotVars, list, LIST_CHANGES),
    (Vars, dict, DICT_CHANGES), (Attrs, dict, DICT_CHANGES), (FixedSlots, dict, DICT_CHANGES),
):  # fmt: skip
    for _name in _names:
        if _name not in vars(_kind):
            setattr(_kind, _name, _counted(_name, _base))
