"""Blocks that an operator holds: they belong to its program, and take and return what it gives and expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minigraph.errors import ProgramError, require
from minigraph.opdef import OpDef
from minigraph.opdef.inner import inner_blocks

from .block_numbers import sub_programs

if TYPE_CHECKING:
    from minigraph.program.block import Block
    from minigraph.program.program import Program

AGAIN = "build the branch or loop again: the operator that holds its block gives and expects what it was built with"


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
