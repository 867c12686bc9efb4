"""The blocks that operators of a program hold: in order, the numbers of operators in all of them, whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from minigraph.errors import ProgramError, require
from minigraph.opdef import OpDef
from minigraph.opdef.inner import inner_blocks

if TYPE_CHECKING:
    from minigraph.program.block import Block
    from minigraph.program.operator import Operator
    from minigraph.program.program import Program

AGAIN = "build the branch or loop again: the operator that holds its block gives and expects what it was built with"


def sub_programs(ops: Iterable[Any]) -> Iterator[tuple[Any, str, Any]]:
    """(operator, attribute, block) of the blocks that these operators hold, not of those inside these blocks."""
    for op in ops:
        if "control" in op.opdef.traits:
            yield from ((op, name, block) for name, block in inner_blocks(op.attrs))


def stand_ins(op: Any) -> Iterator[tuple[Any, Any]]:
    """(variable, what stands for it in a block) of all that an operator hands to the blocks that it holds."""
    for name, slots in op.opdef.blocks.items():
        given = [v for slot in slots for v in op.inputs.get(slot, ())]
        yield from zip(given, op.attrs[name].inputs, strict=True)


def numbered_blocks(program: Program) -> list[Block]:
    """The global block and all others, with `idx` and `parent_idx`: those of one block before those inside them."""
    blocks = [program.block0]
    for outer in blocks:
        for _, _, sub in sub_programs(outer.ops):
            if sub.block0 not in blocks:  # a loop and its gradient hold the same ones
                sub.block0.idx, sub.block0.parent_idx = len(blocks), outer.idx
                blocks.append(sub.block0)
    return blocks


def next_number(ops: Iterable[Operator]) -> int:
    """The number of the operator that is appended behind these; operators in blocks count."""
    ops = list(ops)
    inside = [next_number(sub.ops) for _, _, sub in sub_programs(ops)]
    return max([*(op.number + 1 for op in ops), *inside], default=0)


def acts(op: Any) -> bool:
    """Whether an operator does more than to compute its outputs; one that holds blocks does what these do."""
    if "side_effect" not in op.opdef.traits:
        return False
    return not op.opdef.blocks or any(acts(inner) for _, _, sub in sub_programs([op]) for inner in sub.ops)


def adopt(program: Program, opdef: OpDef, attrs: Mapping[str, Any]) -> None:
    """Let the blocks that an operator of `program` gets belong to it, which then knows of their changes."""
    blocks: list[Any] = [sub for _, sub in inner_blocks(attrs)] if "control" in opdef.traits else []
    for sub in blocks:
        require(
            sub.parent is None or sub.parent is program,
            f"{sub.name} is a block of program {sub.parent and sub.parent.name}", ProgramError,
            "block.clone() makes one for another program",
        )  # fmt: skip
    for sub in blocks:
        sub.parent = program


def check_takes_the_same(block: Block, what: str) -> None:
    """Refuse `what`, by which the block of a branch or loop would take other values than its operator gives it."""
    inner: Any = block.program
    if not inner.is_closed or inner.parent is None:
        return
    for op, _, sub in sub_programs(inner.parent.ops):
        require(
            sub is not inner, f"{what} would change what {inner.name} takes, a block of {op.type}", ProgramError, AGAIN
        )
