"""Block: variables by name and operators in order; `append_op` is the one way in which it grows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from minigraph.errors import (
    MinigraphError,
    ProgramError,
    ShapeError,
    call_site,
    raise_unknown,
    require,
    shortened,
)
from minigraph.errors.kinds import FOREIGN, NAME, UNKNOWN_NAME, UNKNOWN_SIZE
from minigraph.opdef import get_op
from minigraph.types import TensorType, normalize_shape, tensor_type

from . import unique_name
from .blocks.held import adopt, check_takes_the_same
from .changes import Ops, Vars, rename_variable
from .copies import PartOfProgram
from .default_dtype import default_dtype
from .operator import Operator, Slots, describe_call
from .variable import Parameter, Variable, new_variable
from .whole.changing import ONE_CHANGE

if TYPE_CHECKING:
    from .program import Program

MAX_NAME = 256


class Block(PartOfProgram):
    """Variables by name and Operators in order."""

    idx: int
    parent_idx: int

    def __init__(self, program: Program) -> None:
        self.program = program
        self.idx, self.parent_idx = 0, -1
        self.ops: Ops = Ops(self)
        self.vars: Vars = Vars(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("ops", "vars") and name in self.__dict__:
            require(name == "ops", "vars of a block cannot be set", ProgramError, "change the dict")
            self.ops[:] = value
        else:
            object.__setattr__(self, name, value)

    def var(self, name: str) -> Variable:
        """The variable called `name`."""
        variable = self.vars.get(name)
        if variable is None:
            raise_unknown(f"variable of program {self.program.name}", name, self.vars, UNKNOWN_NAME)
        return variable

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def all_parameters(self) -> list[Parameter]:
        return [v for v in list(self.vars.values()) if isinstance(v, Parameter)]

    def create_var(
        self, name: str | None = None, shape: Any = (), dtype: Any = None, *,
        persistable: bool = False, stop_gradient: bool = False, is_data: bool = False,
        type: TensorType | None = None,
    ) -> Variable:  # fmt: skip
        """Add a variable; `type` or (shape, dtype)."""
        name = name if name is not None else unique_name.generate("_generated_var")
        type = type or tensor_type(shape, dtype if dtype is not None else default_dtype())
        if persistable or is_data:
            check_takes_the_same(self, f"a new variable {name}")
        return self._add(
            Variable(self, name, type, persistable=persistable, stop_gradient=stop_gradient, is_data=is_data,
                     site=self.program.emission.site or call_site())
        )  # fmt: skip

    def create_parameter(
        self, name: str | None = None, shape: Any = (), dtype: Any = None, **facts: Any
    ) -> Parameter:
        """Add a Parameter; facts: trainable, learning_rate, regularizer, need_clip."""
        name = name if name is not None else unique_name.generate("parameter")
        shape = normalize_shape(shape)
        require(-1 not in shape, f"parameter {name}: every size must be known, got {list(shape)}", UNKNOWN_SIZE)
        type = tensor_type(shape, dtype if dtype is not None else default_dtype())
        check_takes_the_same(self, f"a new parameter {name}")
        return self._add(Parameter(self, name, type, site=call_site(), **facts))

    def _add(self, variable: Any) -> Any:
        name = checked_name(variable._name)
        with ONE_CHANGE:
            _check_new(self, name)
            self.program.adding(variable)
            dict.__setitem__(self.vars, name, variable)  # nothing else changes
        return variable

    def rename_var(self, old: str, new: str) -> None:
        """Give a variable another name; operators follow, since they hold the variable itself."""
        if old == checked_name(new):
            return
        if new in self.vars:
            raise NAME(f"cannot rename {old}: variable {new} exists already", site=call_site())
        parent = self.program.parent
        if parent is not None and self.vars[old].persistable:
            raise NAME(f"cannot rename {old} in {self.program.name}, which reads it in the Scope by its name",
                       site=call_site(), hint="rename it in the program around the branch or loop")  # fmt: skip
        rename_variable(self.vars[old], new)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Operators appended inside stay only if all are accepted."""
        with self.program.being_changed(), self.program.undone_on_error():
            yield

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Add an operator at the end: the one way in which a Program grows.

        inputs   {slot: variable, name or list of them}
        outputs  in the same form; the variables exist already, and their types must fit the inferred ones.
        """
        for what, slots in (("inputs", inputs), ("outputs", outputs), ("attrs", attrs)):
            require(
                slots is None or isinstance(slots, Mapping), f"{what} must be a dict, is {shortened(repr(slots))}",
                ProgramError,
            )  # fmt: skip
        op, inferred = self.prepare_op(type, self._resolve(inputs or {}), attrs or {})
        given = self._resolve(outputs or {})
        try:
            for slot in given.keys() - set(op.opdef.output_names):
                raise_unknown(f"output slot of {type}", slot, op.opdef.output_names, UNKNOWN_NAME)
            for slot in op.opdef.outputs:
                if slot.name in given:
                    op.outputs[slot.name] = self._typed(slot.name, given[slot.name], inferred.get(slot.name))
                else:
                    require(slot.optional, f"output {slot.name} is missing", ProgramError)
        except MinigraphError as error:
            raise error.at(op.call(), op.site) from None
        return self.add_op(op)

    def prepare_op(
        self, type: str, inputs: Slots, attrs: Mapping[str, Any]
    ) -> tuple[Operator, Mapping[str, list[TensorType]]]:
        """A checked Operator without outputs that is not in the Block yet, and its output types."""
        program = self.program
        now = program.emission
        site = now.site or call_site()
        try:
            with ONE_CHANGE:
                program.check_free()
            opdef = get_op(type)
            for slot, variables in inputs.items():
                for i, v in enumerate(variables):
                    if not isinstance(v, Variable) or v.block is not self:
                        variables[i] = _own(self, slot, v)
            bound, inferred = opdef.resolved(inputs, attrs)
            if "collective" in opdef.traits:
                _check_all_ranks_come(program, opdef)
        except MinigraphError as error:
            raise error.at(describe_call(type, inputs), site) from None
        op = Operator(
            self, opdef, inputs, {}, bound, role=now.role, forward=now.differentiated, site=site,
            scope_name=program.scope_name,
        )
        return op, inferred

    def add_op(self, op: Operator, new: Sequence[Variable] = ()) -> Operator:
        """Put a prepared operator at the end, and with it the new variables that it writes, or none of them."""
        program = self.program
        with ONE_CHANGE:
            for v in new:
                _check_new(self, v._name)
            op.number = program.numbered
            adopt(program, op.opdef, op.attrs)
            self.ops.add(op, new)
            program.numbered += 1
        return op

    def fill(self, variables: Mapping[str, Variable], ops: Collection[Operator]) -> None:
        """Put copies of another Block's variables, by name, and operators into this one, which is new."""
        dict.update(self.vars, variables)
        for op in ops:
            op.seal()
        list.extend(self.ops, ops)
        self.program.version = len(self.ops)

    def _remove_op(self, index: int, sync: bool = True) -> None:
        """Paddle's spelling of `del block.ops[index]`."""
        del self.ops[index]

    def _insert_op(self, index: int, **facts: Any) -> Operator:
        """Paddle's spelling of append_op at another place."""
        with self.whole():
            op = self.append_op(**facts)
            self.ops.insert(index, self.ops.pop())
        return op

    def _resolve(self, slots: Mapping[str, Any]) -> Slots:
        resolved = {}
        for slot, value in slots.items():
            if value is None:
                continue
            values = value if isinstance(value, (list, tuple)) else [value]
            resolved[slot] = [self.var(v) if isinstance(v, str) else v for v in values]
        return {slot: values for slot, values in resolved.items() if values}

    def _typed(self, slot: str, variables: list[Variable], types: list[TensorType] | None) -> list[Variable]:
        if types is None:
            raise UNKNOWN_NAME(f"this call has no output {slot}")
        if len(types) != len(variables):
            raise ProgramError(f"output {slot} has {len(types)} values, not {len(variables)}")
        variables = [v if isinstance(v, Variable) and v.block is self else _own(self, slot, v) for v in variables]
        for v, t in zip(variables, types, strict=True):
            if v.type is not t and not v.type.accepts(t):
                bare = v.shape == () and t.shape != () and not v.persistable  # as Paddle's, which get a shape here
                hint = f"create_var(shape={list(t.shape)}, ...)" if bare else None
                raise ShapeError(f"output {slot} is {t}, variable {v} does not fit", hint=hint)
        return variables

    def __str__(self) -> str:
        return str(self.program)


def _check_new(block: Block, name: str) -> None:
    if name in block.vars:
        raise NAME(f"variable {name} exists already as {block.vars[name].type}", site=call_site())


def _check_all_ranks_come(program: Program, opdef: Any) -> None:
    """No collective in a block of a branch or loop: what one rank decides to run, another may leave out."""
    require(
        program.parent is None and not program.is_closed,
        f"{opdef.type} stands in {program.name}, a block of a branch or loop: ranks that decide differently would wait"
        " for each other", ProgramError, "call it outside, on what the branch or loop returns",
    )  # fmt: skip


def add_alike(block: Block, alike: Iterable[tuple[Operator, Slots, Slots]]) -> list[Operator]:
    """Put operators at the end that are like operators of the block but for what they read and write.

    alike   (the operator that each is like, its inputs, its outputs): see `Operator.like`
    """
    program = block.program
    with ONE_CHANGE:
        made = [op.like(read, written, number) for number, (op, read, written) in enumerate(alike, program.numbered)]
        program.adding(*made)
        list.extend(block.ops, made)  # nothing else changes
        program.numbered += len(made)
    return made


def keep(block: Block, names: Sequence[str], types: Sequence[TensorType]) -> list[Variable]:
    """Add persistable variables through which no gradient flows; their names are fit and free."""
    program = block.program
    site = program.emission.site or call_site()
    made = [
        new_variable(block, name, type, persistable=True, stop_gradient=True, site=site)
        for name, type in zip(names, types, strict=True)
    ]
    with ONE_CHANGE:
        if not block.vars.keys().isdisjoint(names):
            for name in names:
                _check_new(block, name)
        program.adding(*made)
        dict.update(block.vars, zip(names, made, strict=True))  # nothing else changes
    return made


def checked_name(name: Any) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()):
        shown = shortened(repr(name))
        raise NAME(f"{shown} cannot be a name, which is a str of 1 to {MAX_NAME} printable characters")
    return name


def check_names(names: Sequence[str]) -> None:
    """Refuse what `checked_name` would refuse; of many names that are not empty this is the faster way."""
    if max(map(len, names), default=0) > MAX_NAME or not "".join(names).isprintable():
        for name in names:
            checked_name(name)


def _own(block: Block, slot: str, v: Any) -> Variable:
    """`v`, or what stands for it in the block of a branch."""
    if not isinstance(v, Variable):
        raise ProgramError(f"{slot} must be a variable, is {shortened(repr(v))}")
    own = block.program.captured(v)
    if own is not None:
        return own
    if v.program.is_closed:
        raise FOREIGN(
            f"{slot}={v.name} is a variable of {v.program.name}, used outside of it",
            hint="return the variable from the function of the branch or loop, and use what the call returns",
        )
    raise FOREIGN(
        f"{slot}={v.name} belongs to another program",
        hint="build inside program_guard(main) of the program that owns the variable",
    )
