"""Optimizers around optimizers: what they share, and which one holds the update rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .optimizer import Optimizer


class Wrapping:
    """Base of an optimizer around another one, `_optimizer`, where what is not here is looked for."""

    _optimizer: Any

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # before __init__ has set it, as when a copy is made
            raise AttributeError(name)
        return getattr(self._optimizer, name)


def layers_of(optimizer: Any) -> Iterator[Any]:
    """`optimizer`, what it wraps as `_optimizer`, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "__dict__", {}).get("_optimizer")


def rule_of(optimizer: Any) -> Optimizer | None:
    """The optimizer of mg.optimizer that `optimizer` is or wraps; None where there is none."""
    *_, last = layers_of(optimizer)
    return last if isinstance(last, Optimizer) else None
