"""Replicas: one process runs a program at several places, one rank at each.

    feed, cut by rows -> an Executor in a thread for each place -> fetched values, joined

Rank 0 runs in the user's Scope. The others have Scopes of their own, into which agreement.py brings what the user's
holds: before the first run, and later what changed there between two runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import FeedError, MinigraphError, require
from minigraph.kernels.groups import acting
from minigraph.kernels.workers import Task, Workers
from minigraph.program import Program, Variable
from minigraph.program.context import Turn
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope
from minigraph.runtime.seeds import resume_seed, seed_of
from minigraph.runtime.targets import read_targets

from .in_pieces import tear_pieces
from .threads import Meeting

# the user's Scope -> those of rank 1, 2, ...: one model that several programs train or test is there once
_others: weakref.WeakKeyDictionary[Scope, list[Scope]] = weakref.WeakKeyDictionary()


class OfRank:
    """A compiled program as an Executor of one rank sees it."""

    def __init__(self, compiled: Any) -> None:
        self.before, self.options, self._parallel = compiled.before, compiled.options, compiled._parallel
        self.strategy = compiled.strategy
        self._compiled = weakref.ref(compiled)  # an Executor keeps this as long as there is that

    def program_for(self, fetches: Iterable[str], prune: Prune, place: Any) -> Program:
        """The rewritten program for a place."""
        compiled = self._compiled()
        assert compiled is not None
        return compiled.program_for(fetches, prune, place)


class Replicas:
    """The ranks of one compiled program in this process.

    executors  one for each rank, each with a place of its own
    """

    def __init__(self, compiled: Any, executors: Sequence[Any]) -> None:
        self.of_rank, self.executors, self.size = OfRank(compiled), executors, len(executors)
        self._meet()
        self.workers = Workers()
        self.lock, self.turn = threading.RLock(), Turn("Executor")

    def _meet(self) -> None:
        self.meeting = Meeting(self.size)
        self.groups = self.meeting.ranks()

    def run(
        self, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool, merged: bool, prune: bool
    ) -> list[Any]:
        """As Executor.run; a list of feeds has one for each rank, `merged` joins what the ranks fetch."""
        with scope.lock, self.lock, self.turn.begin():  # ranks of two runs must not wait for each other's
            return self._run(cut_feed(feed, self.size), fetch_list, scope, return_numpy, merged, prune)

    def _run(
        self, feeds: list[Any], fetch_list: Any, scope: Scope, return_numpy: bool, merged: bool, prune: bool
    ) -> list[Any]:
        program = self.of_rank.before
        fetches, updates = ((), ()) if fetch_list is None else read_targets(fetch_list, program)
        for place in {executor.place for executor in self.executors}:  # here, so that no two ranks compile
            self.of_rank.program_for(fetches, updates or prune, place)
        scopes = self.meeting.scopes = self._scopes(scope, program)

        def step(rank: int) -> list[Any]:
            return self.executors[rank].run(
                self.of_rank, feeds[rank], fetch_list, scope=scopes[rank], return_numpy=return_numpy, use_prune=prune
            )

        try:
            results = self._together(step)
        except BaseException:
            scope.disagree()  # some ranks may have made the step
            if len({each.steps[program.origin] for each in scopes}) > 1:
                tear_pieces(scopes, "a step failed on some ranks only")
            for executor in self.executors:
                executor.close()  # captured graphs have communicators of the group that is gone
            self._meet()
            raise
        values = list(zip(*results, strict=True))
        return [joined(value) for value in values] if merged else [list(value) for value in values]

    def _scopes(self, scope: Scope, program: Program) -> list[Scope]:
        """The Scope of each rank; all draw their random numbers from one seed."""
        kept = _others.setdefault(scope, [])
        kept += [Scope() for _ in range(self.size - 1 - len(kept))]
        others = kept[: self.size - 1]
        seed = seed_of(program, scope)
        for other in others:
            if seed_of(program, other) != seed:
                resume_seed(program, other, seed)
        return [scope, *others]

    def _together(self, step: Callable[[int], list[Any]]) -> list[list[Any]]:
        """What each rank returns; the error of the one that failed first."""
        meeting, groups = self.meeting, self.groups

        def rank(number: int) -> list[Any]:
            try:
                with acting(groups[number]):
                    return step(number)
            except BaseException as problem:
                meeting.fail(number, problem)
                raise

        others, results, problem = list[Task](), list[list[Any]](), None
        try:
            self.workers.at_least(self.size - 1)
            for number in range(1, self.size):
                others.append(Task(partial(copy_context().run, partial(rank, number))))
                self.workers.take(others[-1])
            results.append(rank(0))
        except BaseException as own:
            meeting.fail(0, own)  # an interrupt may come before rank 0 begins: the others would wait for it
            problem = own
        try:
            _wait(others, problem)
        except BaseException as own:  # they hold their Scopes until they end
            _wait(others, problem)
            problem = own
        for other in others:
            problem = problem or other.problem
            results.append(other.value)
        if problem is None:
            return results
        failed, first = meeting.failed or (0, problem)
        if isinstance(first, MinigraphError) and failed:
            first.hint = f"{first.hint}; it was rank {failed} of {self.size}" if first.hint else (
                f"it was rank {failed} of {self.size}"
            )  # fmt: skip
        raise problem if isinstance(problem, KeyboardInterrupt) else first

    def close(self) -> None:
        """Drop all plans, and end the threads, once no run needs them; a run behind it begins others."""
        with self.lock, self.turn.begin():
            for executor in self.executors:
                executor.close()
            self.workers.end()


def _wait(others: Sequence[Task], problem: BaseException | None) -> None:
    """Return when all have ended; with a problem of rank 0 those that have not begun never will."""
    for other in others:
        if problem is None or not other.cancel():
            other.wait()


def cut_feed(feed: Any, ranks: int) -> list[Any]:
    """The feed of each rank: what a list has for it, or its rows of each array; numbers are for all."""
    if isinstance(feed, (list, tuple)):
        require(len(feed) == ranks, f"feed is a list of {len(feed)} dicts, and {ranks} places run the program",
                FeedError, "one dict for each place, or one dict that is cut by rows")  # fmt: skip
        return list(feed)
    require(isinstance(feed, Mapping), f"feed is a dict {{name: array}}, not a {type(feed).__name__}", FeedError)
    cut: list[dict[Any, Any]] = [{} for _ in range(ranks)]
    for key, value in feed.items():
        name = key.name if isinstance(key, Variable) else key
        array = value if hasattr(value, "shape") else np.asarray(value)
        rows = array.shape[0] if array.ndim else ranks
        if rows % ranks:
            raise FeedError(
                f"feed {name!r} has {rows} rows, which {ranks} places cannot share equally",
                hint="means over unequal parts are not the mean of the batch: drop rows, or feed a list of dicts",
            )
        own = rows // ranks
        for rank, part in enumerate(cut):
            part[key] = array[rank * own : (rank + 1) * own] if array.ndim else array
    return cut


def joined(values: Sequence[Any]) -> Any:
    """One array of what the ranks fetched: joined along the first axis, numbers one behind the other."""
    arrays = [value if isinstance(value, np.ndarray) else value.get() for value in values]
    return np.concatenate([array.reshape(1) if array.ndim == 0 else array for array in arrays])
