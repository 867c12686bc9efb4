"""Executor: runs a Program or CompiledProgram with feeds and returns fetched values.

    feed dict -> checked arrays -> Plan for their shapes (made once, kept) -> run -> fetched arrays
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence, ValuesView
from typing import Any

from minigraph.errors import OutOfMemoryError, ProgramError, require, shortened
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import no_memory
from minigraph.kernels import host_memory
from minigraph.kernels.groups import present
from minigraph.program import Program, default_main_program
from minigraph.program.context import Turn, held_elsewhere, renewed_in_child
from minigraph.program.copies import NotPickled
from minigraph.program.garbage import without_collection
from minigraph.program.prune import Prune
from minigraph.program.reductions import is_collective
from minigraph.program.scope import Scope, global_scope
from minigraph.program.whole.masters import bring_up, checked_masters
from minigraph.types import TensorType

from . import flags
from .backend import RunnablePlan
from .control.plan import plan_for
from .devices import RUNS_AT, backend_of
from .feeds import check_none_is_computed, checked_feeds, feed_types, loaded, only_feed
from .fetched import as_tensor
from .latest import Latest, Ready
from .options import DEFAULT, RunOptions
from .parallel.agreement import AgreedPlan, facts_of, seed_of_rank
from .parallel.replicas import Replicas
from .seeds import seed_of_run
from .targets import check_known, check_updates, read_targets

PROGRAMS_KEPT = 16  # programs with their fetches of which one executor keeps plans
PLANS_KEPT = 1024  # of one of these, for the shapes that its feeds had last
LEAST_KEPT, SPARE = 8, 1 << 30  # of these where the host has less than so many bytes left
GONE_KNOWN = 256  # programs with their fetches whose plans had to go that are remembered
WARNED_AFTER = 8  # plans of these that were made again


class KeptPlans(MutableMapping[Any, RunnablePlan]):
    """The plans of an Executor by what they were made for, the one that ran last at the end.

    gone    programs with their fetches whose plans had to make room;  again: of these, how often one came again
    counts  how many plans there are of a program with its fetches
    """

    def __init__(self) -> None:
        self._plans = OrderedDict[Any, RunnablePlan]()
        self.gone: dict[Any, None] = {}
        self.again = 0
        self.counts = Counter[Any]()

    def __getitem__(self, key: tuple[Any, ...]) -> RunnablePlan:
        return self._plans[key]

    def __setitem__(self, key: tuple[Any, ...], plan: RunnablePlan) -> None:
        self.counts[key[:-1]] += key not in self._plans
        self._plans[key] = plan

    def __delitem__(self, key: tuple[Any, ...]) -> None:
        del self._plans[key]
        self.counts[key[:-1]] -= 1
        if not self.counts[key[:-1]]:
            del self.counts[key[:-1]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plans)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def values(self) -> ValuesView[RunnablePlan]:
        return self._plans.values()

    def used(self, key: tuple[Any, ...]) -> None:
        """The plan with this key ran last."""
        self._plans.move_to_end(key)

    def make_room(self, key: tuple[Any, ...]) -> bool:
        """For the plan that was made last: of what is too much, that goes which was not used for longest.

        Whether something went.
        """
        program, there = key[:-1], len(self)
        count, left = self.counts[program], PLANS_KEPT
        if count > LEAST_KEPT and count % LEAST_KEPT == 1 and _host_is_full():  # to ask takes milliseconds
            left = LEAST_KEPT
        gone = [k for k in self if k[:-1] == program][:-left] if count > left else []
        for k in gone:
            del self[k]
        if count == 1 < there and program in self.gone:  # alone, after all went for lack of memory, it took no turn
            self.again += 1
            if self.again == WARNED_AFTER:
                _warn_of_turns(self.again, [plan.seconds for k, plan in self.items() if k != key])
        others = there - count
        programs = list(dict.fromkeys(k[:-1] for k in reversed(self))) if others >= PROGRAMS_KEPT else []
        for other in programs[PROGRAMS_KEPT:]:
            for k in [k for k in self if k[:-1] == other]:
                del self[k]
            self.gone[other] = None
        if len(self.gone) > GONE_KNOWN:  # the oldest: at most its return is not counted
            del self.gone[next(iter(self.gone))]
        return len(self) < there


class Executor(NotPickled):
    """Runs programs at a place: `exe.run(program, feed={"x": array}, fetch_list=[loss])`.

    Threads may share an executor or a scope: their runs come one after the other. Inside of a run, as in a signal
    handler, another one of the same executor or scope is refused.
    """

    _instead = "make another one with static.Executor(place)"

    def __init__(self, place: Any = None) -> None:
        self.place = place if place is not None else RUNS_AT.get()
        self.backend = backend_of(self.place)
        self.backend.require_available()
        self._plans = KeptPlans()
        self._latest: Latest | None = None
        self._lock, self._turn = threading.RLock(), Turn("Executor")  # plans own their buffers
        self._replicas: weakref.WeakKeyDictionary[Any, Replicas] = weakref.WeakKeyDictionary()
        renewed_in_child(self, _in_child)

    def run(
        self,
        program: Any = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
        return_merged: bool = True,
    ) -> list[Any]:
        """Run every operator of `program` once, in order, and return the values of `fetch_list`.

        program     a Program or CompiledProgram; the default main program for None
        feed        {name of a data variable: array or nested lists} with its declared type and rank; or a list of one
                    such dict
        fetch_list  Variables or names; a single one need not stand in a list. What minimize() returned, as an
                    entry, or a list of its updates, prunes: of all updates only these run
        scope       where persistables live; the global scope for None
        use_prune   run only updates and what these and the fetched values depend on
        return_merged  of several places: values of all ranks joined along the first axis, or a list of them for each
        On a GPU feeds may also be CuPy arrays and others with `__dlpack__`, and return_numpy=False gives CuPy arrays;
        on a CPU it gives arrays that also have Paddle's `.shape()` and `.lod()`. Fetched arrays are copies: a later run
        does not change them. The work is in order with what else CuPy's current stream is given.
        """
        if use_prune is not False or not (return_numpy is return_merged is use_program_cache is True):
            use_prune, return_numpy = as_flag("use_prune", use_prune), as_flag("return_numpy", return_numpy)
            return_merged = as_flag("return_merged", return_merged)
            as_flag("use_program_cache", use_program_cache)
        if program is None:
            program = _default_program(feed or None, fetch_list)
        scope = scope if scope is not None else global_scope()
        try:
            if getattr(program, "places", ()):
                ranks = self._replicas_of(program)
                return ranks.run(feed or {}, fetch_list, scope, return_numpy, return_merged, use_prune)
            return self._run_here(program, feed, fetch_list, scope, return_numpy, use_prune)
        except MemoryError as problem:  # for feeds as arrays, or a copy of one
            raise no_memory("a run", problem) from problem

    def prepare(
        self, program: Any = None, feed: Mapping[Any, Any] | None = None, fetch_list: Any = None,
        scope: Scope | None = None, use_prune: bool = False,
    ) -> None:  # fmt: skip
        """Make the plan of a run and begin to compile its kernels, before there are feeds or values.

        A GPU's kernels are compiled while the process does something else: runs the startup program, reads weights or
        data. The first run that is like this one has the plan, and waits for what is not compiled yet.
        feed  {name or Variable: array or shape}; data variables whose sizes are all known need not be given
        The other arguments are those of `run`. Programs for several places are refused.
        """
        if program is None:
            program = _default_program(feed or None, fetch_list)
        require(not getattr(program, "places", ()), "a program for several places cannot be prepared", ProgramError,
                "run it; for kernels ahead of runs: compiled.kernels(feed, fetch_list).compile()")  # fmt: skip
        self._prepare_here(program, feed or {}, fetch_list, scope if scope is not None else global_scope(), use_prune)

    def _prepare_here(self, program: Any, feed: Any, fetch_list: Any, scope: Scope, use_prune: bool) -> None:
        """Make a plan at this Executor's place."""
        fetches, updates = read_targets([] if fetch_list is None else fetch_list, _own_program(program))
        self.backend.begin()  # while the passes work
        with scope.lock, self._lock, scope.turn.begin(), self._turn.begin():
            self._prepared(program, fetches, updates or bool(use_prune), feed, scope, known=False, shapes=True)

    def _run_here(
        self, program: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool, use_prune: bool
    ) -> list[Any]:
        """Run a program at this Executor's place."""
        if isinstance(feed, (list, tuple)):
            feed = only_feed(feed)
        latest = self._latest
        own = latest.own if latest is not None and program is latest.source else _own_program(program)
        fetches, updates = ((), ()) if fetch_list is None else read_targets(fetch_list, own)
        prune: Prune = updates or use_prune
        feed = {} if feed is None else feed
        feed = loaded(own, feed) if own.loaders else feed
        if not isinstance(scope, Scope):
            raise ProgramError(f"scope must be a Scope, is {shortened(repr(scope))}")
        with scope.lock, self._lock, scope.turn.begin(), self._turn.begin():  # who holds the scope may run a program
            latest = self._latest
            known = latest is not None and latest.serves(program, fetches, prune, scope)
            ready = latest.plan_for(feed) if latest is not None and known else None
            if ready is None:
                latest = None  # its plans may have to make room
                latest, ready, feed = self._prepared(program, fetches, prune, feed, scope, known)
            else:
                self._plans.used(ready.key)
            assert latest is not None
            _bring_up(scope, latest, ready.alone)
            fetched = ready.plan.run(feed, scope, return_numpy)
        return fetched if return_numpy else [as_tensor(value) for value in fetched]

    def _replicas_of(self, compiled: Any) -> Replicas:
        """The ranks that run a program which has several places."""
        with self._lock:
            if compiled not in self._replicas:
                self._replicas[compiled] = Replicas(compiled, [type(self)(place) for place in compiled.places])
            return self._replicas[compiled]

    def _prepared(
        self, source: Any, fetches: tuple[str, ...], prune: Prune, feed: Mapping[str, Any], scope: Scope, known: bool,
        shapes: bool = False,
    ) -> tuple[Latest, Ready, dict[str, Any]]:  # fmt: skip
        """The plan for a call, made unless there is one, and the feeds as arrays.

        known   whether the latest call was like this one but for the feeds
        shapes  the feeds may be shapes, and come back as types
        """
        program, options, left = _rewritten(source, fetches, prune, feed, self.place)
        arrays = feed_types(program, feed) if shapes else checked_feeds(program, feed, self.backend)
        compiled: Any = source
        together = compiled.strategy.chosen() if getattr(source, "_parallel", None) is not None else ""
        seed, settings, set_now = seed_of_run(program, scope), self.backend.settings(), flags.values
        options = flags.applied(options, set_now)
        key = (
            program.id, program.version, fetches, left, seed, settings, options,
            tuple(sorted((name, a.shape) for name, a in arrays.items())),
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            program.check_whole()
            start = time.perf_counter()
            with without_collection():
                try:
                    plan = self._make_plan(program, arrays, fetches, left, seed, options, together)
                except OutOfMemoryError:
                    if not self._plans:
                        raise
                    self._plans.clear()  # they can be made again, and hold memory until then
                    self._latest = None
                    plan = self._make_plan(program, arrays, fetches, left, seed, options, together)
            program.check_whole()
            plan.seconds += time.perf_counter() - start
            self._plans[key] = plan
            if self._plans.make_room(key):
                self._latest = None  # which knows plans that had to go
        self._plans.used(key)
        if self._latest is None or not known:
            own = source if isinstance(source, Program) else source.before
            self._latest = Latest(source, own, own.version, fetches, prune, seed, self.backend, settings, set_now,
                                  program, program.version, checked_masters(own), _writes(program))  # fmt: skip
        ready = Ready(key, plan, self._latest.writes and not isinstance(plan, AgreedPlan))
        self._latest.keep(arrays, ready)
        return self._latest, ready, arrays

    def _make_plan(
        self, program: Program, arrays: Mapping[str, Any], fetches: tuple[str, ...], prune: Prune,
        seed: int, options: RunOptions = DEFAULT, together: str = "",
    ) -> RunnablePlan:  # fmt: skip
        """The plan; `together` says how a program was compiled that several ranks run."""
        check_known(fetches, program)
        types = {name: TensorType(tuple(a.shape), a.dtype) for name, a in arrays.items()}
        if present().size == 1 or not (together or is_collective(program)):
            return plan_for(self.backend, program, types, fetches, prune, seed, options)
        plan = plan_for(self.backend, program, types, fetches, prune, seed_of_rank(seed), options)
        return AgreedPlan(plan, program, facts_of(program, types, fetches, options, together or "none"))

    def close(self) -> None:
        """Drop all plans and their buffers."""
        with self._lock:
            replicas = [*self._replicas.values()]
            self._replicas.clear()
            self._plans, self._latest, self.backend = KeptPlans(), None, backend_of(self.place)
        for each in replicas:  # without the lock: a run at their places may wait for it, in a function of py_func
            each.close()


def _in_child(executor: Executor) -> None:
    """The threads of several places are not there; plans may be half made, or lie in the middle of a run."""
    executor._replicas = weakref.WeakKeyDictionary()
    if held_elsewhere(executor._lock):
        executor._lock, executor._turn = threading.RLock(), Turn("Executor")
        executor._plans, executor._latest = KeptPlans(), None


def _rewritten(
    source: Any, fetches: tuple[str, ...], prune: Prune, feed: Any, place: Any
) -> tuple[Program, RunOptions, Prune]:
    """What runs of a Program or CompiledProgram at a place, how, and what is left to prune."""
    if isinstance(source, Program):
        if isinstance(prune, tuple):
            check_updates(prune, source)
        return source, DEFAULT, prune
    if prune and isinstance(feed, Mapping):
        check_none_is_computed(source.before, feed)
    if isinstance(prune, tuple):
        check_updates(prune, source.before)
    rewritten = source.program_for(fetches, prune, place)
    return rewritten, source.options, False  # the passes got what to prune, and may have joined updates


def _bring_up(scope: Scope, latest: Latest, alone: bool) -> None:
    """What changes in a Scope before a run; alone: the run changes values without other ranks."""
    for variable, scheduler in latest.program.lr_schedulers:
        if scope.has(variable.name):
            scope.fill(variable.name, scheduler())
    if alone:
        scope.disagree()
    if latest.masters and not present().rank:  # what rank 0 has comes to the others
        bring_up(scope, latest.own, latest.masters)


def _warn_of_turns(again: int, seconds: Sequence[float]) -> None:
    """That programs take each other's room; `seconds` are what the plans have cost that ran before the latest one."""
    cost = f"{_duration(sum(seconds) / len(seconds))} on average and {_duration(max(seconds))} at the most"
    warnings.warn(
        f"more programs and lists of fetches take turns than the {PROGRAMS_KEPT} of which one executor keeps plans:"
        f" {again} plans were made again, {cost}; run some of the programs in an Executor of their own to save that"
        " time",
        stacklevel=6,
    )


def _writes(program: Program) -> bool:
    """Whether a program changes values of the Scope."""
    return any(v.persistable for op in program.ops for v in op.output_vars)


def _host_is_full() -> bool:
    left = host_memory.available()
    return left is not None and left < SPARE


def _duration(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"


def _default_program(feed: Any, fetch_list: Any) -> Program:
    """The default main program; one that is empty takes no feeds and gives no values.

    A call without a program that does nothing at all is most often meant for another program: it warns.
    """
    program = default_main_program()
    nothing = fetch_list is None or (isinstance(fetch_list, (list, tuple)) and not fetch_list)
    require(program.vars or (nothing and feed is None), "no program was passed, and the default main program is empty",
            ProgramError, "exe.run(main, ...), or run inside program_guard(main)")  # fmt: skip
    if nothing and not program.ops:
        warnings.warn(
            "no program was passed, and the default main program has no operators: nothing runs;"
            " pass the program, exe.run(main, ...), or run inside program_guard(main)",
            stacklevel=3,
        )
    return program


def _own_program(source: Any) -> Program:
    """The user's Program in what `run` is given."""
    if isinstance(source, Program):
        return source
    require(
        hasattr(source, "program_for"), f"run takes a Program or CompiledProgram, not {source!r}", ProgramError
    )
    return source.before
