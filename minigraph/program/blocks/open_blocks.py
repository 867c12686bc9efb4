"""Which block the code that runs now builds: that of the function of a branch or loop that is being called.

    mg.add(x, y)   inside the function of a branch appends to the branch, wherever x and y come from
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minigraph.errors import call_site
from minigraph.errors.kinds import FOREIGN
from minigraph.program.context import Guards

if TYPE_CHECKING:
    from minigraph.program.block import Block

opened = Guards[Any]("block")  # SubPrograms whose functions run now


def building(block: Block) -> Block:
    """The block to which operators on variables of `block` are appended: the innermost open one inside it, or itself.

    A block whose function has returned takes no more operators: a ProgramError.
    """
    if opened.entries.get():
        for sub in reversed(opened.values()):
            if any(p is block.program for p in sub.around()):
                return sub.block0
    if block.program.is_closed:
        raise FOREIGN(
            f"a variable of {block.program.name} is used outside of it", site=call_site(),
            hint="return the variable from the function of the branch or loop, and use what the call returns",
        )
    return block
