"""Marks of the operators that may compute in 16 bits, where a decorated optimizer asks for marks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from minigraph.program import name_scope

MARKS = ("__use_fp16__", "__use_bf16__")  # name scopes, as in Paddle


def fp16_guard() -> AbstractContextManager[None]:
    """Operators appended inside may compute in 16 bits.

    Without effect unless `decorate(..., use_amp_guard=True)` or `cast_model_to_fp16` asks for it; then no others do.
    """
    return name_scope(MARKS[0])


def bf16_guard() -> AbstractContextManager[None]:
    """As `fp16_guard`; either one marks operators for either type."""
    return name_scope(MARKS[1])
