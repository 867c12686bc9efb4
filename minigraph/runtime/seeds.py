"""Which seed decides the random numbers of a program.

    its own   `program.random_seed`, where that is not 0
    resumed   the one that a checkpoint kept, for this program in the Scope that was loaded
    global    the one of `mg.seed`, else one that is drawn once per process
"""

from __future__ import annotations

import secrets
import threading
import weakref
from typing import Any

from minigraph.program import Program, as_seed
from minigraph.program.context import Setting
from minigraph.program.scope import Scope

_global = Setting[int | None]("seed", None)
_one_draws = threading.Lock()
_Seeds = weakref.WeakKeyDictionary[Any, int]  # by Program.origin
_resumed: weakref.WeakKeyDictionary[Scope, _Seeds] = weakref.WeakKeyDictionary()


def seed(seed: int) -> int:
    """Set the seed of programs that have no `random_seed` of their own.

    The main thread sets it for the process, another thread for itself.
    """
    number = as_seed(seed)
    _global.set(number)
    _resumed.clear()  # who sets a seed after loading a checkpoint wants this one
    return number


def seed_of(program: Program, scope: Scope) -> int:
    """The seed with which a run of `program` in `scope` draws."""
    if program.random_seed:
        return program.random_seed
    if _resumed and (own := _resumed.get(scope)) is not None and program.origin in own:
        return own[program.origin]
    known = _global.get()
    return _drawn() if known is None else known


def _drawn() -> int:
    """The seed of this process, drawn by whichever thread needs it first."""
    with _one_draws:
        if _global.everywhere is None:
            _global.everywhere = secrets.randbits(62)
        return _global.everywhere


def resume_seed(program: Program, scope: Scope, seed: int) -> None:
    """Runs of `program` in `scope` draw with this seed until somebody calls `mg.seed`."""
    _resumed.setdefault(scope, _Seeds())[program.origin] = seed
