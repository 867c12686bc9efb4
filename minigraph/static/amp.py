"""`static.amp`: the places that mixed precision would compute in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fp16_guard() -> Iterator[None]:
    """Operators inside may run in float16 once a program is decorated for mixed precision; no effect by itself."""
    yield


__all__ = ["fp16_guard"]
