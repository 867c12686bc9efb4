"""Updates that differ in their variables alone: the first of a kind is checked, those after it are copies of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.program import Block, Operator, Parameter, Program, Variable
from minigraph.program.block import keep
from minigraph.program.changes import FixedSlots, SlotVars
from minigraph.program.whole.settled import Settled

from .states import Fills, free_names, master_weight


class Template:
    """The first update of a kind, and the startup operators that fill its states.

    states   {slot that reads a state: what its name is, behind that of the parameter}, in the order of `fills`
    """

    def __init__(self, update: Operator, startup: Block, fills: Sequence[Operator], states: Mapping[str, str]) -> None:
        self.update, self.startup, self.fills, self.states = update, startup, fills, states
        self.types = [fill.outputs["Out"][0].type for fill in fills]
        self.has_master = "MasterParam" in update.inputs
        self.read_where_written = [(slot, slot.removesuffix("Out")) for slot in update.outputs]

    def append(self, param: Parameter, grad: Variable) -> None:
        """Append the update of a parameter of this kind, with states of its own."""
        block, startup, update = param.block, self.startup, self.update
        names = free_names(block, startup, [param._name + suffix for suffix in self.states.values()])
        read: dict[str, SlotVars] = dict(update.inputs)
        read["Param"], read["Grad"] = SlotVars((param,)), SlotVars((grad,))
        for slot, v in zip(self.states, keep(block, names, self.types), strict=True):
            read[slot] = SlotVars((v,))
        filled = zip(self.fills, keep(startup, names, self.types), strict=True)
        startup.add_alike([(fill, fill.inputs, FixedSlots(Out=SlotVars((v,)))) for fill, v in filled])
        if self.has_master:
            read["MasterParam"] = SlotVars((master_weight(param, startup),))
        written = FixedSlots([(slot, read[own]) for slot, own in self.read_where_written])
        block.add_alike([(update, FixedSlots(read), written)])


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
    program = block.program
    return (
        id(param.type), id(grad.type), id(lr), id(group), *wanted, *wanted.values(), *flags,
        *map(id, flags.values()), program.role, program.differentiated, program.site, program.scope_name,
    )  # fmt: skip


@dataclass
class Templates:
    """The first update of each kind that one call has appended.

    A kind is some facts and the attributes. These are told apart by their identity, and where they are other objects
    by their text, which unlike == tells 0.0 from -0.0 and 1 from True.
    """

    _by_identity: dict[Any, Template] = field(default_factory=dict)
    _by_text: dict[Any, Template] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)  # attributes, so that no other ones get their identity

    def of(self, facts: tuple[Any, ...], attrs: Mapping[str, Any]) -> Template | None:
        """The template of a kind; None for a new one."""
        known = self._by_identity.get((*facts, *map(id, attrs.values())))
        return known if known is not None else self._by_text.get((*facts, repr(attrs)))

    def add(self, facts: tuple[Any, ...], attrs: Mapping[str, Any], template: Template) -> None:
        """Keep the first one of a kind."""
        self._alive.append(attrs)
        self._by_identity[(*facts, *map(id, attrs.values()))] = self._by_text[(*facts, repr(attrs))] = template


@dataclass
class Shared:
    """What the updates share that one call appends; empty between calls."""

    startup: Any = None  # the Block where states are initialised
    flags: dict[str, Any] = field(default_factory=dict)  # variables by the slot of an update that reads them
    fills: Fills = field(default_factory=dict)
    templates: Templates = field(default_factory=Templates)
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
