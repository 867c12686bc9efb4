"""A block as it was, where something fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minigraph.program.block import Block
from minigraph.program.variable import facts_of, set_facts


@contextmanager
def as_before_on_error(block: Block) -> Iterator[None]:
    """Whatever changes inside, operators, variables and their types, stays only if all is accepted."""
    program, ops, variables = block.program, list(block.ops), dict(block.vars)
    facts = [facts_of(v) for v in variables.values()]
    numbered, schedulers = program.numbered, list(program.lr_schedulers)
    with program.being_changed():
        try:
            yield
        except BaseException:
            list.__setitem__(block.ops, slice(None), ops)
            dict.clear(block.vars)
            dict.update(block.vars, variables)
            for v, before in zip(variables.values(), facts, strict=True):
                set_facts(v, before)
            program.numbered, program.lr_schedulers = numbered, schedulers
            program.version += 1
            raise
