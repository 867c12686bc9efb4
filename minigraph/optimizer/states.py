"""What an optimizer keeps between runs: persistable variables, which the startup program fills."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.errors import AttrError, ProgramError, require
from minigraph.program import Block, Operator, Parameter, Program, Variable, unique_name
from minigraph.program.block import add_alike, check_names, checked_name, keep
from minigraph.program.builder import Builder
from minigraph.program.changes import FixedSlots, SlotVars
from minigraph.program.scope import Scope
from minigraph.program.variable import WIDE_SUFFIX
from minigraph.program.whole.settled import Settled
from minigraph.types import TensorType, bfloat16, float16, float32, float64, tensor_type

from .lr import LRScheduler

Fills = dict[tuple[TensorType, str], Operator]
"""Startup operators by the type and the text of the value with which they fill a variable."""


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
        return own, add_alike(startup, [(known, known.inputs, FixedSlots(Out=SlotVars((initial,))))])[0]
    fact = {"shape": type.shape, "value": value, "dtype": type.dtype}
    fills[what] = startup.append_op("fill_constant", outputs={"Out": initial}, attrs=fact)
    return own, fills[what]


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
    names, types = free_names(block, startup, [key]), [type]
    return keep(block, names, types)[0], keep(startup, names, types)[0]


def free_names(block: Block, startup: Block, keys: Sequence[str]) -> list[str]:
    """A new name from each key, which neither program has; a name is for one variable of each."""
    names = unique_name.generate_all(keys)
    check_names(names)
    for i, name in enumerate(names):
        while name in block.vars or name in startup.vars:
            name = names[i] = checked_name(unique_name.generate(keys[i]))
    return names


def rate_of(learning_rate: Any) -> float:
    """The learning rate of the next run, of a number or an LRScheduler."""
    require(not isinstance(learning_rate, Variable), "the learning rate is a Variable, whose value only a run knows",
            ProgramError, "fetch it: exe.run(main, feed={...}, fetch_list=[rate])")  # fmt: skip
    return float(learning_rate()) if isinstance(learning_rate, LRScheduler) else learning_rate


class Rate:
    """The learning rate variable of one program, and its multiples for parameters with a factor.

    skip  where this variable is true, the updates with this rate are skipped
    """

    def __init__(self, variable: Variable, initial: Operator | None, skip: Variable | None) -> None:
        self.variable, self.initial, self.skip = variable, initial, skip
        self.scaled: dict[float, Variable] = {1.0: variable}

    @classmethod
    def of(cls, params: Sequence[Parameter], learning_rate: Any, shared: Shared) -> Rate:
        """A new one for the program of `params`; a scheduler's value is written before each run.

        A Variable of the program is the rate itself.
        """
        dtype = float64 if all(p.dtype == float64 for p in params) else float32
        program, type, skip = params[0].program, tensor_type((1,), dtype), shared.flags.get("SkipUpdate")
        if isinstance(learning_rate, Variable):
            g = Builder(program.global_block())
            own = learning_rate if learning_rate.ndim == 1 else g.reshape(learning_rate, shape=[1])
            return cls(own if own.dtype == dtype else g.cast(own, dtype=dtype), None, skip)
        variable, initial = persistable(
            program.global_block(), shared.startup, "learning_rate", rate_of(learning_rate), type
        )
        if isinstance(learning_rate, LRScheduler):
            program.lr_schedulers.append((variable, learning_rate))
        return cls(variable, initial, skip)

    def times(self, g: Builder, factor: float) -> Variable:
        """The learning rate times a factor."""
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


class UpdateTemplate:
    """The first update of a kind, and the startup operators that fill its states.

    states   {slot that reads a state: what its name is, behind that of the parameter}, in the order of `fills`
    """

    def __init__(self, update: Operator, startup: Block, fills: Sequence[Operator], states: Mapping[str, str]) -> None:
        self.update, self.startup, self.fills, self.states = update, startup, fills, states
        self.types = [fill.outputs["Out"][0].type for fill in fills]
        self.has_master = "MasterParam" in update.inputs
        self.read_where_written = [(slot, slot.removesuffix("Out")) for slot in update.outputs]

    def append(self, pairs: Sequence[tuple[Parameter, Variable]]) -> None:
        """Append the updates of parameters of this kind, given with their gradients; each has states of its own."""
        if not self.has_master:
            self._append(pairs)
            return
        for pair in pairs:  # the operator that makes a master weight stands behind those that fill the other states
            self._append([pair])

    def _append(self, pairs: Sequence[tuple[Parameter, Variable]]) -> None:
        block, startup, update = self.update.block, self.startup, self.update
        names = free_names(block, startup, [p._name + suffix for p, _ in pairs for suffix in self.states.values()])
        types = self.types * len(pairs)
        states = [SlotVars((v,)) for v in keep(block, names, types)]
        filled = [FixedSlots(Out=SlotVars((v,))) for v in keep(startup, names, types)]
        add_alike(startup, [(op, op.inputs, out) for op, out in zip(itertools.cycle(self.fills), filled)])
        own = iter(states)
        alike = []
        for param, grad in pairs:
            read = FixedSlots(update.inputs)
            dict.update(read, zip(self.states, own, strict=False))  # those behind them are of the next parameter
            dict.update(read, Param=SlotVars((param,)), Grad=SlotVars((grad,)))
            if self.has_master:
                dict.update(read, MasterParam=SlotVars((master_weight(param, startup),)))
            written = FixedSlots([(slot, read[own_slot]) for slot, own_slot in self.read_where_written])
            alike.append((update, read, written))
        add_alike(block, alike)


def kind_of(
    block: Block, param: Parameter, grad: Any, lr: Any, group: Any, wanted: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[Any, ...]:
    """All that an update depends on besides its attributes and variables; empty where nobody can tell.

    group    the settings of the parameter's group, None without one
    wanted   {slot: name} of the states
    flags    variables by the slots that read them, which all updates share
    """
    if not all([isinstance(v, Variable) and v.block is block for v in (param, grad, lr)]):
        return ()
    now = block.program.emission
    return (
        id(param.type), id(grad.type), id(lr), id(group), *wanted, *wanted.values(), *flags,
        *map(id, flags.values()), now.role, now.differentiated, now.site, block.program.scope_name,
    )  # fmt: skip


@dataclass
class UpdateTemplates:
    """The first update of each kind that one call has appended.

    A kind is some facts and the attributes. These are told apart by their identity, and where they are other objects
    by their text, which unlike == tells 0.0 from -0.0 and 1 from True.
    """

    _by_identity: dict[Any, UpdateTemplate] = field(default_factory=dict)
    _by_text: dict[Any, UpdateTemplate] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)  # attributes, so that no other ones get their identity

    def of(self, facts: tuple[Any, ...], attrs: Mapping[str, Any]) -> UpdateTemplate | None:
        """The template of a kind; None for a new one."""
        known = self._by_identity.get((*facts, *map(id, attrs.values())))
        return known if known is not None else self._by_text.get((*facts, repr(attrs)))

    def add(self, facts: tuple[Any, ...], attrs: Mapping[str, Any], template: UpdateTemplate) -> None:
        """Keep the first one of a kind."""
        self._alive.append(attrs)
        self._by_identity[(*facts, *map(id, attrs.values()))] = self._by_text[(*facts, repr(attrs))] = template


@dataclass
class Shared:
    """What the updates share that one call appends; empty between calls."""

    startup: Any = None  # the Block where states are initialised
    flags: dict[str, Any] = field(default_factory=dict)  # variables by the slot of an update that reads them
    fills: Fills = field(default_factory=dict)
    templates: UpdateTemplates = field(default_factory=UpdateTemplates)
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
