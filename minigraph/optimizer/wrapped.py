"""Optimizers around optimizers: what they share, and which one holds the update rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minigraph.program import Program, default_startup_program, program_guard
from minigraph.program.blocks.restored import as_before_on_error

from .optimizer import Optimizer


class Wrapping:
    """Base of an optimizer around another one, `_optimizer`, where what is not here is looked for."""

    _optimizer: Any

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # before __init__ has set it, as when a copy is made
            raise AttributeError(name)
        return getattr(self._optimizer, name)


@contextmanager
def all_or_nothing(program: Program, startup: Program | None, optimizer: Any) -> Iterator[Program]:
    """Both programs, the default ones inside, stay as they were where something is refused; gives the startup program.

    startup    the default one for None
    optimizer  stays as it was, too, with all that it wraps
    """
    startup = startup if startup is not None else default_startup_program()
    with (
        program_guard(program, startup), as_before_on_error(program.global_block()),
        as_before_on_error(startup.global_block()), _facts_on_error(optimizer),
    ):  # fmt: skip
        yield startup


@contextmanager
def _facts_on_error(optimizer: Any) -> Iterator[None]:
    """Where something is refused inside, the layers of an optimizer are what they were, and fixed no more."""
    before = [(layer, dict(vars(layer))) for layer in layers_of(optimizer)]
    rates = [dict(facts.get("_rates", {})) for _, facts in before]
    try:
        yield
    except BaseException:
        for (layer, facts), known in zip(before, rates, strict=True):
            vars(layer).clear()
            vars(layer).update(facts | ({"_rates": known} if "_rates" in facts else {}))
        raise


def layers_of(optimizer: Any) -> Iterator[Any]:
    """`optimizer`, what it wraps as `_optimizer`, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "__dict__", {}).get("_optimizer")


def rule_of(optimizer: Any) -> Optimizer | None:
    """The optimizer of mg.optimizer that `optimizer` is or wraps; None where there is none."""
    *_, last = layers_of(optimizer)
    return last if isinstance(last, Optimizer) else None
