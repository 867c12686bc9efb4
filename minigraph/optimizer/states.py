"""What an optimizer keeps between runs: persistable variables, which the startup program fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.errors import AttrError, ProgramError, require
from minigraph.program import Block, Operator, Parameter, Program, Variable, unique_name
from minigraph.program.block import checked_name, keep
from minigraph.program.builder import Builder
from minigraph.program.known import holds_variables
from minigraph.program.scope import Scope
from minigraph.program.variable import WIDE_SUFFIX
from minigraph.program.whole.settled import Settled
from minigraph.types import TensorType, bfloat16, float16, float32, float64, tensor_type

from .lr import LRScheduler
from .settings import check_number

WRITTEN = "MasterParamOut", "Moment2MaxOut", "MeanGradOut"

Fills = dict[tuple[TensorType, str], Operator]
"""Startup operators by the type and the text of the value with which they fill a variable."""


@dataclass
class Shared:
    """What the updates share that one call appends; empty between calls.

    updates  the first of several that cannot be told apart but by their variables, by all that they can be told by
    """

    startup: Any = None  # the Block where states are initialised
    flags: dict[str, Any] = field(default_factory=dict)  # variables by the slot of an update that reads them
    fills: Fills = field(default_factory=dict)
    updates: dict[Any, Operator] = field(default_factory=dict)
    rules: list[Any] = field(default_factory=list)  # of weight decay that were called

    def used(self, rule: Any) -> Any:
        """`rule`, which builds a part of the updates."""
        self.rules.append(rule)
        return rule

    def settle(self, program: Program, clip: Any, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """The updates are there: what they were built with changes nothing from now on."""
        program.updated = True
        clips = {id(rule): rule for rule in (clip, *[group.get("grad_clip") for group in groups.values()])}
        for rule in (*clips.values(), *self.rules):
            if isinstance(rule, Settled):
                rule.settle("minimize")

    def append(self, g: Builder, op_type: str, read: dict[str, Variable], out: dict[str, Variable], attrs: Any) -> None:
        """Append an update, {slot: variable} of what it reads and writes: what is like one before is not checked again.

        Optional outputs of `WRITTEN` are new variables where `out` does not name them.
        """
        block, program = g.block, g.block.program
        variables = (*read.values(), *out.values())
        known, key = None, None
        if all([isinstance(v, Variable) and v.block is block for v in variables]) and not holds_variables(attrs):
            stands = program.role, program.differentiated, id(program.site), program.scope_name
            key = op_type, *read, *out, *[id(v.type) for v in variables], repr(attrs), *stands
            known = self.updates.get(key)
        if known is not None:
            block.add_op(known.like(out, read))
            return
        g.emit(op_type, **read, **attrs, out=out, needs=WRITTEN)
        if key is not None and program.ops[-1].outputs.keys() <= out.keys():
            self.updates[key] = program.ops[-1]


def persistable(
    block: Block, startup: Block, key: str, value: float, type: TensorType, fills: Fills | None = None
) -> tuple[Variable, Operator]:
    """A new persistable variable, and the startup operator that fills it.

    fills   operators of `startup` that stand where this one will, by what they fill in: it is like one of them, if
            there is one, and is kept for others
    """
    if not isinstance(type, TensorType):
        raise AttrError(f"type of {key} must be a TensorType, is {type!r}", hint="param.type.with_dtype(dtype)")
    own, initial = _declared(block, startup, key, type)
    if fills is None:
        fills = {}
    what = type, repr(value)  # unlike ==, it tells 0.0 from -0.0 and 1 from True
    known = fills.get(what)
    if known is not None:
        return own, startup.add_op(known.like({"Out": initial}))
    Builder(startup).fill_constant(shape=type.shape, value=value, dtype=type.dtype, out={"Out": initial})
    fills[what] = startup.ops[-1]
    return own, startup.ops[-1]


def state_type(param: Parameter) -> TensorType:
    """The type of what is summed up over many runs: that of the parameter, float32 for one of 16 bits."""
    return param.type.with_dtype(float32) if param.dtype in (float16, bfloat16) else param.type


def master_weight(param: Parameter, startup: Block) -> Variable:
    """A float32 copy of `param`, which the startup program makes of its first value, before that is rounded."""
    require(
        startup.has_var(param.name), f"the startup program does not initialise {param.name}, so it cannot"
        " initialise its float32 copy", ProgramError,
    )  # fmt: skip
    own, copy = _declared(param.block, startup, f"{param.name}_fp32_master", param.type.with_dtype(float32))
    wide = param.name + WIDE_SUFFIX
    first = startup.var(wide if startup.has_var(wide) else param.name)
    Builder(startup).cast(first, dtype=float32, out={"Out": copy})
    return own


def _declared(block: Block, startup: Block, key: str, type: TensorType) -> tuple[Variable, Variable]:
    """A new persistable variable of both programs."""
    name = checked_name(unique_name.generate(key))
    while name in block.vars or name in startup.vars:
        name = checked_name(unique_name.generate(key))
    return keep(block, name, type), keep(startup, name, type)


def rate_of(learning_rate: Any) -> float:
    """The learning rate of the next run, of a number or an LRScheduler."""
    require(not isinstance(learning_rate, Variable), "the learning rate is a Variable, whose value only a run knows",
            ProgramError, "fetch it: exe.run(main, feed={...}, fetch_list=[rate])")  # fmt: skip
    return float(learning_rate()) if isinstance(learning_rate, LRScheduler) else learning_rate


class Rate:
    """The learning rate variable of one program, and its multiples for parameters with a factor."""

    def __init__(self, variable: Variable, initial: Operator | None) -> None:
        self.variable, self.initial = variable, initial
        self.scaled: dict[float, Variable] = {1.0: variable}

    @classmethod
    def of(cls, params: Sequence[Parameter], learning_rate: Any, startup: Block) -> Rate:
        """A new one for the program of `params`; a scheduler's value is written before each run.

        A Variable of the program is the rate itself.
        """
        dtype = float64 if all(p.dtype == float64 for p in params) else float32
        program, type = params[0].program, tensor_type((1,), dtype)
        if isinstance(learning_rate, Variable):
            g = Builder(program.global_block())
            own = learning_rate if learning_rate.ndim == 1 else g.reshape(learning_rate, shape=[1])
            return cls(own if own.dtype == dtype else g.cast(own, dtype=dtype), None)
        variable, initial = persistable(
            program.global_block(), startup, "learning_rate", rate_of(learning_rate), type
        )
        if isinstance(learning_rate, LRScheduler):
            program.lr_schedulers.append((variable, learning_rate))
        return cls(variable, initial)

    def times(self, g: Builder, factor: float) -> Variable:
        """The learning rate times a factor."""
        factor = check_number("ParamAttr.learning_rate", factor)
        if factor not in self.scaled:
            self.scaled[factor] = g.scale(self.variable, scale=factor)
        return self.scaled[factor]

    def held_in(self, scope: Scope, number: float) -> float:
        """The value in `scope`; `number` where there is none, and where it is the rounding of `number`."""
        if not scope.has(self.variable.name):
            return number
        held = scope.read(self.variable.name).reshape(())
        return number if held == held.dtype.type(number) else float(held)

    def set(self, value: float, scope: Scope) -> None:
        """Write another value into `scope` and the startup program."""
        assert self.initial is not None
        self.initial.attrs["value"] = value
        if scope.has(self.variable.name):
            scope.fill(self.variable.name, value)
