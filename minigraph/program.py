"""Program: what the user builds. One global Block with typed Variables and a list of Operators.

A Program is plain data in the order in which it was written. Everything else (autodiff, passes,
the Executor) reads it through `block.ops` and `block.vars`, and adds to it only by
`Block.append_op`, which checks inputs and attributes and infers output types.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import unique_name
from .dump import dump
from .errors import (
    AttrError,
    CallSite,
    MinigraphError,
    ProgramError,
    call_site,
    raise_unknown,
    require,
)
from .opdef import OpDef, get_op
from .scope import Scope, global_scope
from .types import TensorType, default_dtype, normalize_shape, tensor_type

GRAD_SUFFIX = "@GRAD"
ROLES = ("forward", "backward", "optimize")
MAX_NAME = 256


class Variable:
    """A named, typed place for a value in a Block.

    persistable    lives in the Scope between runs (parameters, optimizer states)
    stop_gradient  no gradient flows into it or through it
    is_data        declared by `static.data`, to be fed
    """

    __array_ufunc__ = None  # NumPy leaves `array * variable` to Variable.__rmul__

    def __init__(
        self,
        block: Block,
        name: str,
        type: TensorType,
        *,
        persistable: bool = False,
        stop_gradient: bool = False,
        is_data: bool = False,
        site: CallSite | None = None,
    ) -> None:
        self.block, self._name, self.type = block, name, type
        self.persistable, self.stop_gradient, self.is_data = persistable, stop_gradient, is_data
        self.site = site

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self.block.rename_var(self._name, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, -1 where known only at run time."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def grad_name(self) -> str:
        return self._name + GRAD_SUFFIX

    @property
    def program(self) -> Program:
        return self.block.program

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """`name : f32[4,8]`"""
        return str(self)

    def __str__(self) -> str:
        return f"{self._name}: {self.type}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _no_value(self, what: str) -> MinigraphError:
        return ProgramError(
            f"{what} of variable {self} has no value while the program is built",
            site=call_site(),
            hint="fetch it: exe.run(program, feed=..., fetch_list=[variable]); for a choice by value use mg.where",
        )

    def __bool__(self) -> bool:
        raise self._no_value("bool()")

    def __float__(self) -> float:
        raise self._no_value("float()")

    def __int__(self) -> int:
        raise self._no_value("int()")

    def __index__(self) -> int:
        raise self._no_value("int()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise self._no_value("numpy.array()")

    def __len__(self) -> int:
        require(self.ndim > 0, f"len() of a 0-d variable {self}", ProgramError)
        require(self.shape[0] >= 0, f"len() of {self}: axis 0 is known only at run time", ProgramError)
        return self.shape[0]


class Parameter(Variable):
    """A persistable Variable that an optimizer updates.

    optimize_attr  {"learning_rate": factor on the optimizer's rate}
    regularizer    beats the optimizer's own
    need_clip      False leaves it out of gradient clipping
    """

    def __init__(
        self,
        block: Block,
        name: str,
        type: TensorType,
        *,
        trainable: bool = True,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        need_clip: bool = True,
        site: CallSite | None = None,
    ) -> None:
        super().__init__(block, name, type, persistable=True, stop_gradient=not trainable, site=site)
        self.optimize_attr = {"learning_rate": learning_rate}
        self.regularizer, self.need_clip = regularizer, need_clip

    @property
    def trainable(self) -> bool:
        return not self.stop_gradient

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.stop_gradient = not value


Slots = dict[str, list[Variable]]


class Operator:
    """One call of an operator type: inputs and outputs by slot, attributes, and where it was written.

    role      forward, backward or optimize
    forward   the forward Operator whose gradient this one computes (None for forward operators)
    grad_slot the input slot of `forward` whose gradient the first output is, where the names of
              the output slots do not say it (`X_grad` says X)
    number    counts operators of a program; keys its random numbers
    """

    __slots__ = ("attrs", "block", "forward", "grad_slot", "inputs", "number", "opdef", "outputs", "role",
                 "scope_name", "site")  # fmt: skip

    def __init__(
        self, block: Block, opdef: OpDef, inputs: Slots, outputs: Slots, attrs: dict[str, Any],
        *, role: str = "forward", forward: Operator | None = None, grad_slot: str | None = None,
        site: CallSite | None = None, number: int = 0, scope_name: str = "",
    ) -> None:  # fmt: skip
        self.block, self.opdef, self.inputs, self.outputs, self.attrs = block, opdef, inputs, outputs, attrs
        self.role, self.forward, self.grad_slot, self.site = role, forward, grad_slot, site
        self.number, self.scope_name = number, scope_name

    @property
    def type(self) -> str:
        return self.opdef.type

    def input(self, slot: str) -> list[str]:
        """Names of the variables in an input slot."""
        return [v.name for v in self.inputs.get(slot, ())]

    def output(self, slot: str) -> list[str]:
        """Names of the variables in an output slot."""
        return [v.name for v in self.outputs.get(slot, ())]

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_vars(self) -> Iterator[Variable]:
        return itertools.chain.from_iterable(self.inputs.values())

    @property
    def output_vars(self) -> Iterator[Variable]:
        return itertools.chain.from_iterable(self.outputs.values())

    @property
    def input_arg_names(self) -> list[str]:
        return [v.name for v in self.input_vars]

    @property
    def output_arg_names(self) -> list[str]:
        return [v.name for v in self.output_vars]

    def attr(self, name: str) -> Any:
        if name not in self.attrs:
            raise_unknown(f"attribute of {self.type}", name, self.attrs, AttrError)
        return self.attrs[name]

    def has_attr(self, name: str) -> bool:
        return name in self.attrs

    def all_attrs(self) -> dict[str, Any]:
        return dict(self.attrs)

    @property
    def attr_names(self) -> list[str]:
        return list(self.attrs)

    @property
    def idx(self) -> int:
        """Position in its Block."""
        return next(i for i, op in enumerate(self.block.ops) if op is self)

    def call(self) -> str:
        """`matmul(X=x: f32[4,8], Y=w: f32[8,3])`, as errors show it."""
        return describe_call(self.type, self.inputs)

    def to_string(self, throw_on_error: bool = False) -> str:
        return str(self)

    def __str__(self) -> str:
        outputs = ", ".join(f"{v}" for v in self.output_vars)
        return f"{outputs} = {self.call()}"

    def __repr__(self) -> str:
        return f"<Operator {self}>"


def describe_call(op_type: str, inputs: Mapping[str, Sequence[Any]]) -> str:
    """`type(slot=name: type, ...)`"""
    slots = []
    for slot, variables in inputs.items():
        shown = [str(v) for v in variables[:4]] + (["..."] if len(variables) > 4 else [])
        slots.append(f"{slot}={shown[0]}" if len(shown) == 1 else f"{slot}=[{', '.join(shown)}]")
    return f"{op_type}({', '.join(slots)})"


class Block:
    """Variables by name and Operators in order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.idx, self.parent_idx = 0, -1
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []

    def var(self, name: str) -> Variable:
        """The variable called `name`."""
        found = self.vars.get(name)
        if found is None:
            raise_unknown(f"variable of program {self.program.name}", name, self.vars, ProgramError)
        return found

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def all_parameters(self) -> list[Parameter]:
        return [v for v in self.vars.values() if isinstance(v, Parameter)]

    def create_var(
        self, name: str | None = None, shape: Any = (), dtype: Any = None, *,
        persistable: bool = False, stop_gradient: bool = False, is_data: bool = False,
        type: TensorType | None = None,
    ) -> Variable:  # fmt: skip
        """Add a variable; `type` or (shape, dtype)."""
        name = name if name is not None else unique_name.generate("_generated_var")
        type = type or tensor_type(shape, dtype if dtype is not None else default_dtype())
        return self._add(
            Variable(self, name, type, persistable=persistable, stop_gradient=stop_gradient, is_data=is_data,
                     site=call_site())
        )  # fmt: skip

    def create_parameter(
        self, name: str | None = None, shape: Any = (), dtype: Any = None, **facts: Any
    ) -> Parameter:
        """Add a Parameter; facts: trainable, learning_rate, regularizer, need_clip."""
        name = name if name is not None else unique_name.generate("parameter")
        shape = normalize_shape(shape)
        require(-1 not in shape, f"parameter {name}: every size must be known, got {list(shape)}")
        type = tensor_type(shape, dtype if dtype is not None else default_dtype())
        return self._add(Parameter(self, name, type, site=call_site(), **facts))

    def _add(self, variable: Any) -> Any:
        name = variable.name
        require(
            isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable(),
            f"{name!r} cannot be a name: 1 to {MAX_NAME} printable characters",
            ProgramError,
        )
        if name in self.vars:
            raise ProgramError(f"variable {name} exists already as {self.vars[name].type}", site=call_site())
        self.vars[name] = variable
        self.program.version += 1
        return variable

    def rename_var(self, old: str, new: str) -> None:
        """Give a variable another name; operators follow, since they hold the variable itself."""
        if old == new:
            return
        if new in self.vars:
            raise ProgramError(f"cannot rename {old}: variable {new} exists already", site=call_site())
        variable = self.vars.pop(old)
        variable._name = new
        self.vars[new] = variable
        self.program.version += 1

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Add an operator at the end: the one way in which a Program grows.

        inputs   {slot: variable, name or list of them}
        outputs  likewise; the variables exist already. Their types must fit the inferred ones.
        """
        op, inferred = self.prepare_op(type, self._resolve(inputs or {}), attrs or {})
        given = self._resolve(outputs or {})
        try:
            for slot in given.keys() - set(op.opdef.output_names):
                raise_unknown(f"output slot of {type}", slot, op.opdef.output_names, ProgramError)
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
    ) -> tuple[Operator, dict[str, list[TensorType]]]:
        """A checked Operator without outputs that is not in the Block yet, and its output types."""
        site = self.program.site or call_site()
        try:
            opdef = get_op(type)
            opdef.check_inputs(inputs)
            for slot, variables in inputs.items():
                for v in variables:
                    require(
                        isinstance(v, Variable), f"{slot} must be a variable, is {v!r}"[:200], ProgramError
                    )
                    require(
                        v.block is self, f"{slot}={v.name} belongs to another program", ProgramError,
                        "build inside program_guard(main) of the program that owns the variable",
                    )  # fmt: skip
            bound = opdef.bind_attrs(attrs)
            inferred = opdef.infer_types({s: [v.type for v in vs] for s, vs in inputs.items()}, bound)
        except MinigraphError as error:
            raise error.at(describe_call(type, inputs), site) from None
        op = Operator(
            self, opdef, inputs, {}, bound, role=self.program.role, forward=self.program.differentiated,
            site=site, scope_name=self.program.scope_name,
        )  # fmt: skip
        return op, inferred

    def add_op(self, op: Operator) -> Operator:
        """Put a prepared operator at the end."""
        op.number = self.program.next_number()
        self.ops.append(op)
        self.program.version += 1
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
        require(types is not None, f"this call has no output {slot}", ProgramError)
        assert types is not None
        require(
            len(types) == len(variables), f"output {slot} has {len(types)} values, not {len(variables)}", ProgramError
        )
        for v, t in zip(variables, types, strict=True):
            require(v.type.accepts(t), f"output {slot} is {t}, variable {v} does not fit")
        return variables

    def __str__(self) -> str:
        return str(self.program)


class Program:
    """A list of operators over variables; `print(program)` shows one operator per line.

    version   counts changes, so that plans made for an older state are not reused
    """

    _ids = itertools.count()

    def __init__(self, name: str | None = None) -> None:
        self.id = next(Program._ids)
        self.name = name or f"program_{self.id}"
        self.version = 0
        self.random_seed = 0
        self.role = "forward"  # role of operators that are appended now
        self.differentiated: Operator | None = None  # forward link of operators that are appended now
        self.site: CallSite | None = None  # where they come from, if not from the user's current line
        self.scope_name = ""
        self.lr_schedulers: list[tuple[Variable, Any]] = []
        self.fetched: tuple[str, ...] = ()  # names in `fetch` lines of the text form
        self._numbers = itertools.count()
        self.block0 = Block(self)

    def next_number(self) -> int:
        return next(self._numbers)

    @property
    def blocks(self) -> list[Block]:
        return [self.block0]

    @property
    def num_blocks(self) -> int:
        return 1

    def global_block(self) -> Block:
        return self.block0

    def current_block(self) -> Block:
        return self.block0

    def block(self, index: int) -> Block:
        require(index == 0, f"block {index} does not exist, a program has one block", ProgramError)
        return self.block0

    @property
    def ops(self) -> list[Operator]:
        return self.block0.ops

    @property
    def vars(self) -> dict[str, Variable]:
        return self.block0.vars

    def list_vars(self) -> Iterator[Variable]:
        return iter(list(self.vars.values()))

    def all_parameters(self) -> list[Parameter]:
        return self.block0.all_parameters()

    @contextmanager
    def emitting(
        self, role: str, *, forward: Operator | None = None, site: CallSite | None = None
    ) -> Iterator[None]:
        """Operators appended inside have this role, forward link and (if given) user's line."""
        saved = self.role, self.differentiated, self.site
        self.role, self.differentiated, self.site = role, forward, site or self.site
        try:
            yield
        finally:
            self.role, self.differentiated, self.site = saved

    def clone(self, for_test: bool = False) -> Program:
        """A copy. With for_test only the forward operators, in their inference form (no dropout).

        Parameters are shared through the Scope by their names.
        """
        copy = Program(self.name)
        copy.random_seed, copy.fetched = self.random_seed, self.fetched
        kept = [op for op in self.ops if not for_test or op.role == "forward"]
        used = {id(v) for op in kept for v in itertools.chain(op.input_vars, op.output_vars)}
        for v in self.vars.values():
            if not for_test or id(v) in used or isinstance(v, Parameter) or v.is_data:
                copy.block0.vars[v.name] = copy_var(v, copy.block0)
        copied: dict[int, Operator] = {}
        for op in kept:
            attrs = dict(op.attrs)
            if for_test and "is_test" in attrs:
                attrs["is_test"] = True
            copied[id(op)] = new = Operator(
                copy.block0, op.opdef,
                {s: [copy.vars[v.name] for v in vs] for s, vs in op.inputs.items()},
                {s: [copy.vars[v.name] for v in vs] for s, vs in op.outputs.items()},
                attrs, role=op.role, forward=copied.get(id(op.forward)), grad_slot=op.grad_slot,
                site=op.site, number=op.number, scope_name=op.scope_name,
            )  # fmt: skip
            copy.ops.append(new)
        copy._numbers = itertools.count(max((op.number for op in self.ops), default=-1) + 1)
        if not for_test:
            copy.lr_schedulers = [(copy.vars[v.name], s) for v, s in self.lr_schedulers]
        copy.version = len(copy.ops)
        return copy

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The text form, one operator per line; `with_details` adds the user's line of each."""
        return dump(self, with_details)

    def state_dict(self, mode: str = "all", scope: Scope | None = None) -> dict[str, np.ndarray]:
        """Copies of the persistable values by name; mode is all, param (parameters) or opt (the others)."""
        require(mode in ("all", "param", "opt"), f"mode {mode!r} is not all, param or opt", ProgramError)
        scope = scope or global_scope()
        return {
            v.name: scope.read(v.name)
            for v in self.vars.values()
            if v.persistable and scope.has(v.name) and (mode == "all" or isinstance(v, Parameter) == (mode == "param"))
        }

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
        """Put values into the Scope; names, shapes and types must be those of persistable variables.

        Nothing is changed unless all of them fit.
        """
        checked = {}
        for name, value in state_dict.items():
            v = self.block0.var(name)
            array = np.asarray(value)
            require(v.persistable, f"{name} is not persistable", ProgramError)
            require(
                array.shape == v.shape and array.dtype == v.dtype,
                f"state of {v} has shape {list(array.shape)} and type {array.dtype}",
            )
            checked[name] = array.copy()
        for name, array in checked.items():
            (scope or global_scope()).write(name, array)

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.ops)} operators, {len(self.vars)} variables>"


def copy_var(v: Variable, block: Block) -> Variable:
    """The same variable for another Block (not yet in it)."""
    if not isinstance(v, Parameter):
        return Variable(block, v.name, v.type, persistable=v.persistable, stop_gradient=v.stop_gradient,
                        is_data=v.is_data, site=v.site)  # fmt: skip
    copy = Parameter(block, v.name, v.type, trainable=v.trainable, regularizer=v.regularizer,
                     need_clip=v.need_clip, site=v.site)  # fmt: skip
    copy.optimize_attr = dict(v.optimize_attr)
    return copy


_current = [Program("main"), Program("startup")]


def default_main_program() -> Program:
    """The Program to which operators are appended now."""
    return _current[0]


def default_startup_program() -> Program:
    """The Program to which initialisers of new parameters are appended now."""
    return _current[1]


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make these the default programs inside the block."""
    for program in (main_program, startup_program):
        require(
            program is None or isinstance(program, Program), f"program_guard takes Programs, not {program!r}",
            ProgramError,
        )  # fmt: skip
    saved = list(_current)
    _current[:] = [main_program, startup_program if startup_program is not None else saved[1]]
    try:
        yield
    finally:
        _current[:] = saved


@contextmanager
def name_scope(prefix: str) -> Iterator[None]:
    """Mark the operators appended inside with `prefix/`, for reading dumps and drawings."""
    program = default_main_program()
    saved = program.scope_name
    program.scope_name = f"{saved}{prefix}/"
    try:
        yield
    finally:
        program.scope_name = saved
