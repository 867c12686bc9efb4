"""Which seed decides the random numbers of a program.

    its own   `program.random_seed`, where that is not 0
    resumed   the one that a checkpoint kept, for this program in the Scope that was loaded
    global    the one of `mg.seed`, else one that is drawn once per process
"""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from typing import Any

from minigraph.program import Program, as_seed
from minigraph.program.context import Setting
from minigraph.program.scope import Scope

_global = Setting[int | None]("seed", None)
_calls = itertools.count(1)  # of `seed` and `resume_seed`: the later one holds
_set_at = Setting[int]("call of seed", 0)
_one_draws = threading.Lock()
_OfProgram = weakref.WeakKeyDictionary[Any, tuple[int, int]]  # by Program.origin
_resumed: weakref.WeakKeyDictionary[Scope, _OfProgram] = weakref.WeakKeyDictionary()  # (seed, call)
_apart: weakref.WeakKeyDictionary[Scope, _OfProgram] = weakref.WeakKeyDictionary()  # (seed, thread)


def seed(seed: int) -> int:
    """Set the seed of programs that have no `random_seed` of their own.

    The main thread sets it for the process, another thread for itself. It holds in place of one of a checkpoint that
    was loaded before.
    """
    number = as_seed(seed)
    _global.set(number)
    _set_at.set(next(_calls))
    return number


def seed_of(program: Program, scope: Scope) -> int:
    """The seed with which a run of `program` in `scope` draws that this thread begins."""
    return _seed(program, scope, _global.get(), _set_at.get())


def seed_of_run(program: Program, scope: Scope) -> int:
    """The same for a run that begins now; whoever saves from another thread will ask for it."""
    seed = seed_of(program, scope)
    if _global.own() is not None:
        _apart.setdefault(scope, _OfProgram())[program.origin] = seed, threading.get_ident()
    elif _apart and scope in _apart:
        _apart[scope].pop(program.origin, None)
    return seed


def seed_of_next_run(program: Program, scope: Scope) -> int:
    """The seed with which the thread that ran a program last goes on, whichever thread asks."""
    last = _apart[scope].get(program.origin) if scope in _apart else None
    if last is None and scope.steps[program.origin]:  # it has no seed for itself
        return _seed(program, scope, _global.everywhere, _set_at.everywhere)
    if last is None or (last[1] == threading.get_ident() and _global.own() is not None):
        return seed_of(program, scope)
    return last[0]


def _seed(program: Program, scope: Scope, known: int | None, set_at: int) -> int:
    if program.random_seed:
        return program.random_seed
    if _resumed and (own := _resumed.get(scope)) is not None:
        resumed, at = own.get(program.origin, (0, 0))
        if at > set_at:
            return resumed
    return _drawn() if known is None else known


def _drawn() -> int:
    """The seed of this process, drawn by whichever thread needs it first."""
    with _one_draws:
        if _global.everywhere is None:
            _global.everywhere = secrets.randbits(62)
        return _global.everywhere


def resume_seed(program: Program, scope: Scope, seed: int) -> None:
    """Runs of `program` in `scope` draw with this seed until somebody calls `mg.seed`, for the thread that runs."""
    _resumed.setdefault(scope, _OfProgram())[program.origin] = seed, next(_calls)
