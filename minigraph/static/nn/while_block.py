"""`While`: a loop whose body is the inside of a `with`, which writes the variables that change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minigraph.errors import MinigraphError, call_site, require
from minigraph.errors.kinds import BLOCKS
from minigraph.opdef.inner import check_flag
from minigraph.program import Variable, default_main_program, default_startup_program, unique_name
from minigraph.program.blocks.subprogram import SubProgram, being_built
from minigraph.tensor.arguments import variable

from .loops import append_loop


class While:
    """The operators of `block()` run as long as `cond`, a bool of one element, is True.

        i, n = mg.zeros([1], "int64"), mg.full([1], 10, "int64")
        going = mg.less_than(i, n)
        with static.nn.control_flow.While(going).block():
            mg.increment(i)
            mg.assign(mg.less_than(i, n), going)

    The body writes variables from outside by mg.assign(x, output=y) and mg.increment; they hold the last values behind
    the loop. static.nn.while_loop is the same with a function for the body. is_test says nothing.
    Errors: ProgramError where the body never writes cond.
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        self.cond = variable(cond, "While", "cond")
        try:
            check_flag(f"cond {cond.name}", cond.type)
        except MinigraphError as error:
            raise error.at("While", call_site()) from None
        self.name = name or unique_name.generate("while")

    @contextmanager
    def block(self) -> Iterator[None]:
        """Builds the body."""
        block = default_main_program().current_block()
        with default_main_program().global_block().whole(), default_startup_program().undone_on_error():
            rounds = SubProgram(f"{self.name}.body", block.program)
            with being_built(rounds):
                yield
            ends = any(v is self.cond for v in rounds.written())
            require(ends, f"the block of While does not write its condition {self.cond}: it would never end", BLOCKS,
                    "mg.assign(mg.less_than(i, n), cond) as its last line")  # fmt: skip
            test, flag = SubProgram.traced(
                f"{self.name}.cond", block.program, lambda: None, finish=lambda sub, _: sub.captured(self.cond)
            )
            append_loop(self.name, block, (test, flag), (rounds, []), [])
