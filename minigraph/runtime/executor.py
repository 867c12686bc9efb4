"""Executor: runs a Program or CompiledProgram with feeds and returns fetched values.

    feed dict -> checked arrays -> Plan for their shapes (made once, kept) -> run -> fetched arrays
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph import cuda
from minigraph.errors import (
    AttrError,
    FeedError,
    FetchError,
    OutOfMemoryError,
    ProgramError,
    nearest,
    require,
    shortened,
)
from minigraph.program import Program, Variable, default_main_program
from minigraph.program.copies import NotPickled
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope, global_scope
from minigraph.runtime.cpu.checked import CheckedPlan
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.plan import Arenas, CudaPlan
from minigraph.types import (
    FLOATS,
    NO_ARRAY,
    CPUPlace,
    CUDAPlace,
    Place,
    TensorType,
    as_numpy,
    why_no_array,
)

from . import flags
from .garbage import without_collection
from .options import DEFAULT, RunOptions
from .seeds import seed_of
from .targets import check_updates, read_targets

PLANS_KEPT = 8  # of a program with its fetches, for the shapes that its feeds had last
SHAPES_KEPT = 256  # programs with their fetches whose shapes of feeds one executor remembers
ALL_PLANS_KEPT = 16  # of one executor: a program for training and its test program have room for all of theirs

@dataclass(slots=True)
class Latest:
    """The call of the latest run: where the next one is like it, nothing else needs to be looked at.

    source        the Program or CompiledProgram
    own, version  the user's Program in it, and how often that had been changed
    rewritten     how often the program that runs had been changed
    feeds         name, array class, type and shape of each feed
    """

    source: Any
    own: Program
    version: int
    fetches: tuple[str, ...]
    prune: Prune
    seed: int
    tf32: bool
    flags: dict[str, bool]
    feeds: tuple[tuple[str, type, np.dtype, tuple[int, ...]], ...]
    program: Program
    rewritten: int
    plan: Any

    def fits(
        self, source: Any, fetches: tuple[str, ...], prune: Prune, feed: Any, scope: Scope
    ) -> bool:
        """Whether the same plan serves this call and its feeds need no conversion."""
        if (
            source is not self.source or fetches != self.fetches or prune != self.prune
            or self.own.version != self.version or self.program.version != self.rewritten
            or self.tf32 is not cuda.allows_tf32() or self.flags is not flags.values
            or type(feed) is not dict or len(feed) != len(self.feeds)
            or seed_of(self.program, scope) != self.seed
        ):  # fmt: skip
            return False
        for name, kind, dtype, shape in self.feeds:
            array: Any = feed.get(name)
            if type(array) is not kind or array.dtype != dtype or array.shape != shape:
                return False
        return True


class Executor(NotPickled):
    """Runs programs at a place: `exe.run(program, feed={"x": array}, fetch_list=[loss])`.

    Threads may share an executor or a scope: their runs come one after the other.
    """

    _instead = "make another one with static.Executor(place)"

    def __init__(self, place: Place | None = None) -> None:
        self.place = place if place is not None else CPUPlace()
        require(
            isinstance(self.place, (CPUPlace, CUDAPlace)), f"a place is CPUPlace() or CUDAPlace(n), not {place!r}",
            ProgramError,
        )  # fmt: skip
        if isinstance(self.place, CUDAPlace):
            cuda.require_available(self.place)
        self._plans: OrderedDict[Any, Plan | CudaPlan] = OrderedDict()
        self._latest: Latest | None = None
        self._arenas = Arenas()
        self._shapes: defaultdict[Any, set[Any]] = defaultdict(set)  # of the feeds of each program with its fetches
        self._again = 0  # plans that were made again, since other programs had taken their room
        self._lock = threading.RLock()  # plans own their buffers

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
    ) -> list[np.ndarray]:
        """Run every operator of `program` once, in order, and return the values of `fetch_list`.

        program     a Program or CompiledProgram; the default main program for None
        feed        {name of a data variable: array or nested lists} with its declared type and rank
        fetch_list  Variables or names; a single one need not stand in a list. What minimize() returned, as an
                    entry, or a list of its updates, prunes: of all updates only these run
        scope       where persistables live; the global scope for None
        use_prune   run only updates and what these and the fetched values depend on
        On a GPU feeds may also be CuPy arrays and others with `__dlpack__`, and return_numpy=False
        gives CuPy arrays. Fetched arrays are copies: a later run does not change them. The work is
        in order with what else CuPy's current stream is given.
        """
        if program is None:
            program = default_main_program()
        own = _own_program(program)
        fetches, updates = ((), ()) if fetch_list is None else read_targets(fetch_list, own)
        prune: Prune = updates or bool(use_prune)
        if feed is None:
            feed = {}
        scope = scope if scope is not None else global_scope()
        if not isinstance(scope, Scope):
            raise ProgramError(f"scope must be a Scope, is {shortened(repr(scope))}")
        with self._lock, scope.lock:
            latest = self._latest
            if latest is None or not latest.fits(program, fetches, prune, feed, scope):
                latest = None  # its plan may have to make room
                latest, feed = self._prepared(program, fetches, prune, feed, scope)
            plan = latest.plan
            for variable, scheduler in latest.program.lr_schedulers:
                if scope.has(variable.name):
                    scope.fill(variable.name, scheduler())
            return plan.run(feed, scope, return_numpy)

    def _prepared(
        self, source: Any, fetches: tuple[str, ...], prune: Prune, feed: Mapping[str, Any], scope: Scope
    ) -> tuple[Latest, dict[str, Any]]:
        """The plan for a call, made unless there is one, and the feeds as arrays."""
        program, options, left = source, DEFAULT, prune
        if not isinstance(source, Program):
            if prune and isinstance(feed, Mapping):
                _check_none_is_computed(source.before, feed)
            if isinstance(prune, tuple):
                check_updates(prune, source.before)
            program, options = source.program_for(fetches, prune), source.options
            left = False  # the passes got what was left, and may have joined updates
        elif isinstance(prune, tuple):
            check_updates(prune, source)
        arrays = _checked_feeds(program, feed, isinstance(self.place, CUDAPlace))
        seed, tf32, set_now = seed_of(program, scope), cuda.allows_tf32(), flags.values
        options = flags.applied(options, set_now)
        key = (
            program.id, program.version, fetches, left, seed, tf32, options,
            tuple(sorted((name, a.shape) for name, a in arrays.items())),
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            start = time.perf_counter()
            with without_collection():
                try:
                    plan = self._make_plan(program, arrays, fetches, left, seed, tf32, options)
                except OutOfMemoryError:
                    if not self._plans:
                        raise
                    self._plans.clear()  # they can be made again, and hold memory until then
                    self._shapes.clear()
                    self._latest = None
                    plan = self._make_plan(program, arrays, fetches, left, seed, tf32, options)
            plan.seconds += time.perf_counter() - start
            self._plans[key] = plan
            self._make_room(key)
            self._warn_of_cost(program, key)
        self._plans.move_to_end(key)
        feeds = tuple((name, type(a), a.dtype, a.shape) for name, a in arrays.items())
        own = source if isinstance(source, Program) else source.before
        self._latest = Latest(source, own, own.version, fetches, prune, seed, tf32, set_now, feeds, program,
                              program.version, plan)  # fmt: skip
        return self._latest, arrays

    def _make_plan(
        self, program: Program, arrays: Mapping[str, Any], fetches: tuple[str, ...], prune: Prune,
        seed: int, tf32: bool, options: RunOptions = DEFAULT,
    ) -> Plan | CudaPlan:  # fmt: skip
        for name in fetches:
            if name not in program.vars:
                raise FetchError(
                    f"fetch target {name!r} is not in program {program.name}", hint=nearest(name, program.vars)
                )
        types = {name: TensorType(tuple(a.shape), a.dtype) for name, a in arrays.items()}
        if isinstance(self.place, CUDAPlace):
            runtime = cuda.runtime(self.place)
            return CudaPlan(program, types, fetches, prune, seed, runtime, tf32, options, self._arenas)
        return (CheckedPlan if options.check_nan_inf else Plan)(program, types, fetches, prune, seed, options)

    def _make_room(self, key: tuple[Any, ...]) -> None:
        """For the plan that was made last: what was not used for longest goes."""
        own = [k for k in self._plans if k[:-1] == key[:-1]]
        if len(own) > PLANS_KEPT:
            del self._plans[own[0]]
        elif len(self._plans) > ALL_PLANS_KEPT:
            self._plans.popitem(last=False)

    def _warn_of_cost(self, program: Program, key: tuple[Any, ...]) -> None:
        """Once where feeds of a program have had more shapes, once where programs are more, than plans are kept."""
        shapes = self._shapes[key[:-1]]
        if len(self._shapes) > SHAPES_KEPT:  # the oldest goes: at most it is warned of once more
            del self._shapes[next(iter(self._shapes))]
        if len(shapes) > PLANS_KEPT:
            return
        if key[-1] in shapes:  # other programs had taken its room
            self._again += 1
            if self._again == PLANS_KEPT:
                programs = len({k[:-1] for k in self._plans})
                warnings.warn(
                    f"more plans take turns than the {ALL_PLANS_KEPT} that one executor keeps, these of {programs}"
                    f" programs and lists of fetches: {self._again} were made again, {self._cost(key)}; run some of"
                    " the programs in an Executor of their own to save that time",
                    stacklevel=4,
                )
            return
        shapes.add(key[-1])
        if len(shapes) > PLANS_KEPT:
            warnings.warn(
                f"feeds of program {program.name} change their shapes: each of {len(shapes)} so far needs a plan,"
                f" {self._cost(key)}, and {PLANS_KEPT} are kept; pad feeds to a few sizes to save that time",
                stacklevel=4,
            )

    def _cost(self, key: tuple[Any, ...]) -> str:
        """What plans like the one that was made last have cost: those of its program, or all, that ran before it."""
        before = [plan.seconds for k, plan in self._plans.items() if k != key]
        own = [plan.seconds for k, plan in self._plans.items() if k != key and k[:-1] == key[:-1]]
        seconds = own or before
        return f"{_duration(sum(seconds) / len(seconds))} on average and {_duration(max(seconds))} at the most"

    def close(self) -> None:
        """Drop all plans and their buffers."""
        with self._lock:
            self._plans.clear()
            self._shapes.clear()
            self._latest, self._arenas, self._again = None, Arenas(), 0


def _duration(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"


def _own_program(source: Any) -> Program:
    """The user's Program in what `run` is given."""
    if isinstance(source, Program):
        return source
    require(
        hasattr(source, "program_for"), f"run takes a Program or CompiledProgram, not {source!r}", ProgramError
    )
    return source.before


def _check_none_is_computed(program: Program, feed: Mapping[Any, Any]) -> None:
    """Passes may let readers look past a value that the program computes: they would not see what is fed for it."""
    fed = {name.name if isinstance(name, Variable) else name for name in feed}
    for op in program.ops:
        for v in op.output_vars:
            if v.name in fed and not v.is_data:
                raise FeedError(
                    f"feed {v.name!r} is computed by {op.type}, and passes may read past it", site=op.site,
                    hint="run the Program itself, or make it a data variable",
                )  # fmt: skip


def _checked_feeds(program: Program, feed: Mapping[str, Any], on_gpu: bool = False) -> dict[str, Any]:
    """Arrays for all fed variables, of the host or (for a GPU) of a device; what does not fit is refused."""
    require(isinstance(feed, Mapping), f"feed is a dict {{name: array}}, not a {type(feed).__name__}", FeedError)
    arrays = {}
    for name, value in feed.items():
        v = program.fed_variable(name)
        array = _as_array(v, value, on_gpu)
        _check_fit(v, array)
        arrays[v.name] = array
    return arrays


def _as_array(v: Variable, value: Any, on_gpu: bool = False) -> Any:
    """A plain NumPy array in native byte order; Python numbers take the variable's type where they fit it.

    For a GPU, an array of a GPU as it is.
    """
    if isinstance(value, Variable):
        raise FeedError(f"feed {v.name} is the variable {value}, which has no value yet; feed an array", site=v.site)
    if isinstance(value, np.ma.MaskedArray):
        raise FeedError(f"feed {v.name} is a masked array", site=v.site, hint="feed its filled(...) values")
    try:
        if on_gpu and (device := cuda.device_array(value)) is not None:
            return device
        array = as_numpy(value)
    except NO_ARRAY as problem:
        lists = isinstance(value, (list, tuple))
        hint = None if lists else "feed what numpy.asarray takes: an array of the host, of a type that NumPy knows"
        if on_gpu and hint:
            hint += "; or one of the GPU that cupy.from_dlpack takes"
        raise FeedError(f"feed {v.name} is {why_no_array(value, problem)}", site=v.site, hint=hint) from None
    numbers = not hasattr(value, "__array__") and array.dtype.kind in "bif"
    if numbers and array.dtype != v.dtype and (array.dtype.kind != "f" or v.dtype in FLOATS):
        with np.errstate(over="ignore"):
            typed = array.astype(v.dtype)
        fits = np.isfinite(typed) == np.isfinite(array) if v.dtype in FLOATS else typed == array
        if not fits.all():
            raise FeedError(f"feed {v.name} has values that {v.dtype} cannot hold", site=v.site)
        array = typed
    if array.dtype.newbyteorder("=") == v.dtype and not array.dtype.isnative:
        array = array.astype(v.dtype)
    return array


def _check_fit(v: Variable, array: Any) -> None:
    if array.dtype != v.dtype:
        number = array.dtype.kind in "biuf" or array.dtype in FLOATS
        raise FeedError(
            f"feed {v.name} must be {v.dtype}, is {array.dtype if number else _kind(array)}", site=v.site,
            hint=f"feed {v.name}.astype({v.dtype.name!r})" if number else None,
        )  # fmt: skip
    fits = array.ndim == v.ndim and all(s in (-1, a) for s, a in zip(v.shape, array.shape, strict=True))
    if not fits:
        raise FeedError(f"feed {v.name} must be {v.type}, has shape {list(array.shape)}", site=v.site)


def _kind(array: Any) -> str:
    """What an array of other things than numbers holds."""
    if array.ndim == 0 and array.dtype.kind in "OU":
        return shortened(repr(array.item()))
    return f"an array of {array.dtype.name if array.dtype.names is None else 'records'}"


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """A list of CPUPlaces, one by default."""
    fits = device_count is None or (isinstance(device_count, int) and device_count > 0)
    require(fits, f"device_count must be an int > 0, is {device_count!r}", AttrError)
    return [CPUPlace() for _ in range(device_count or 1)]


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """CUDAPlaces of the given GPUs, of all by default."""
    return [CUDAPlace(i) for i in (device_ids if device_ids is not None else range(cuda.device_count()))]
