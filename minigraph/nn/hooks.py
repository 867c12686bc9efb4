"""What is called before or after a layer's forward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]
_numbers = itertools.count()


class HookRemoveHelper:
    """A registered hook; `remove()` takes it away again."""

    def __init__(self, hooks: dict[int, Hook], hook: Hook) -> None:
        self._hooks, self._number = hooks, next(_numbers)
        hooks[self._number] = hook

    def remove(self) -> None:
        self._hooks.pop(self._number, None)
