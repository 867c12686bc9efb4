"""The plans that a run will make, before it runs: one of a program, or one of each piece and block of a program cut.

    for part in ahead(program, feeds, fetches):
        backend.memory(part.program, part.feeds, part.fetches, options)

Which blocks run, and how often, only a run decides; each stands here once, a loop's with the sizes of its first round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigraph.errors import ShapeError
from minigraph.program import Operator, Program
from minigraph.program.text.summary import infer_outputs
from minigraph.types import TensorType

from .pieces import cut, is_cut

WHOLE = ""  # the title of a program that is not cut


@dataclass(frozen=True)
class OwnPlan:
    """What gets a plan of its own.

    title     `piece 0`, the name of a block, or WHOLE
    unknown   values that it reads and whose sizes a run decides; where there are any, no plan can be made ahead
    """

    title: str
    program: Any
    feeds: Mapping[str, TensorType]
    fetches: Sequence[str]

    @property
    def unknown(self) -> list[str]:
        return [name for name, t in self.feeds.items() if -1 in t.shape]


def ahead(program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str]) -> Iterator[OwnPlan]:
    """All parts in the order of the program, blocks where the operator stands that holds them."""
    titles: set[str] = set()
    for part in _parts(program, feeds, fetches, WHOLE):
        title, number = part.title, 1
        while part.title in titles:  # the block of a gradient has the name of the block
            number += 1
            part = replace(part, title=f"{title} ({number})")
        titles.add(part.title)
        yield part


def _parts(program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], title: str) -> Iterator[OwnPlan]:
    if not is_cut(program):
        yield OwnPlan(title, program, feeds, fetches)
        return
    types = {name: v.type for name, v in program.vars.items()} | dict(feeds)
    for number, part in enumerate(cut(program, program.ops, fetches, feeds)):
        if part.piece.ops:
            given = {name: types[name] for name in part.reads}
            yield OwnPlan(f"{title} piece {number}".strip(), part.piece, given, part.fetches)
        for op in part.piece.ops:
            infer_outputs(op, types)
        if part.control is not None:
            yield from _blocks(part.control, types)
            _infer_control(part.control, types)


def _blocks(op: Operator, types: Mapping[str, TensorType]) -> Iterator[OwnPlan]:
    """The parts of the blocks that an operator runs."""
    for name, slots in op.opdef.blocks.items():
        if op.type == "while_loop_grad" and name != "grad_block":
            continue  # those of the loop, which has run them
        block = op.attrs[name]
        given = itertools.chain.from_iterable(op.inputs.get(slot, ()) for slot in slots)
        feeds = {
            own.name: types[v.name] for own, v in zip(block.inputs, given, strict=True) if not own.persistable
        }
        title = f"{block.name}@GRAD" if op.role == "backward" else block.name
        yield from _parts(block, feeds, block.fetched, title)


def _infer_control(op: Operator, types: dict[str, TensorType]) -> None:
    """Put the types of its outputs, as they follow from those of its inputs through its blocks, into `types`."""
    typed = {}
    try:
        for name, slots in op.opdef.blocks.items():
            typed[name] = op.attrs[name].clone()
            typed[name].take_types([types[v.name] for slot in slots for v in op.inputs.get(slot, ())])
        given = {slot: [types[v.name] for v in vs] for slot, vs in op.inputs.items()}
        found = op.opdef.infer_types(given, {**op.attrs, **typed})
    except ShapeError:  # as of a loop that makes a value longer: what its types say as they were built
        infer_outputs(op, types)
        return
    for slot, vs in op.outputs.items():
        types.update((v.name, t) for v, t in zip(vs, found.get(slot, ()), strict=False))
