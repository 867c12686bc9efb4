"""Plan: a Schedule bound to NumPy kernels.

Values whose kernels can write into a given array share buffers of an arena, which other plans use
between two runs: a step allocates next to nothing. A run is a loop over bound steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from minigraph.errors import KernelError, MinigraphError, UninitializedError
from minigraph.errors.kinds import MEMORY, OTHER_VALUE
from minigraph.kernels.cpu.peaks import peaks
from minigraph.kernels.cpu.product import SMALL, one_thread_in_blas
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope
from minigraph.runtime import profiling
from minigraph.runtime.options import DEFAULT, RunOptions
from minigraph.runtime.schedule import Schedule, Step, Value, each, flat
from minigraph.runtime.undo import Undo, check_whole
from minigraph.types import TensorType

from .buffers import assign_buffers, in_float32
from .memory import LARGE, LOW_PRECISION, PAGE, AddressRange, WideInputs, pages

Lasting = tuple[Callable[..., None], list[tuple[int, np.ndarray]], list[int]]  # as in ScopeFacts


@dataclass
class BoundStep:
    """A step with its kernel and the arguments that are known ahead."""

    step: Step
    kernel: Callable[..., Any]
    inputs: list[Any]  # as in Step, with stand-in arrays for what is not read, _gathered
    attrs: dict[str, Any]
    out: list[Any] | None  # if the kernel takes `out`, per output slot: planned array, value that it updates, or None


@dataclass
class ScopeFacts:
    """What is known of a Scope until a name gets another array there.

    env      persistables in the places of their values, and in those of what lasting calls make of them
    lasting  number of a step: (call, made, moved) where the step has the same arrays in every run but for those of
             the values `moved`: `call(*these)` runs it on them, `made` are those that steps before it have written,
             with their values; None where that cannot be
    steady   whether a run has left all names their arrays
    """

    version: int
    env: list[Any]
    lasting: dict[int, Lasting | None] = field(default_factory=dict)
    steady: bool = False

    def __post_init__(self) -> None:
        self.arrays = [array for array in self.env if array is not None]
        self.owners = frozenset(id(_owner(array)) for array in self.arrays)

    def fed(self, array: np.ndarray) -> np.ndarray:
        """A feed; a copy of one that shows an array of the Scope, which a step may write over."""
        owner = _owner(array)
        if type(owner) is np.ndarray and owner.base is None:
            return array.copy() if id(owner) in self.owners else array
        # a buffer, or what came through DLPack: nobody says whose it is
        return array.copy() if any(np.may_share_memory(array, own) for own in self.arrays) else array


class Plan:
    """Steps and buffers of `program` on a CPU for feeds of the given types.

    arena    where its buffers lie; a range of their own for None
    placed   False for a plan that is only looked at: it takes no memory and cannot run
    seconds  what it has cost to make, as whoever makes it measures
    """

    seconds = 0.0

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune = False,
        seed: int = 0, options: RunOptions = DEFAULT, arena: AddressRange | None = None,
        placed: bool = True,
    ) -> None:  # fmt: skip
        self.program, self.seed, self.options = program, seed, options
        self.schedule = Schedule(program, feeds, fetches, prune, inplace=options.inplace)
        self.values, self.fetched, self.random = self.schedule.values, self.schedule.fetched, self.schedule.random
        self.wide = WideInputs()
        self.steps = [self._bind(step) for step in self.schedule.steps]
        self.checked = False
        self.large = any(_may_use_threads_of_blas(bound, self.values) for bound in self.steps)
        self.facts_in: weakref.WeakKeyDictionary[Scope, ScopeFacts] = weakref.WeakKeyDictionary()
        self.undo = Undo(self.schedule.steps)
        self.updated = {i for step in self.schedule.steps for i in flat(step.in_place)}
        arena = arena or AddressRange()
        self.buffers, self.nbytes = _assigned(self, arena if placed else None)
        if placed:
            self.wide.place(arena)
        for bound in self.steps:
            if bound.out is not None:
                bound.out = _gathered([_target(*pair) for pair in zip(bound.out, bound.step.in_place, strict=True)])

    def _bind(self, step: Step) -> BoundStep:
        opdef, attrs = step.op.opdef, dict(step.op.attrs)
        if "needs" in opdef.injected:
            attrs["needs"] = step.needs
        inputs = [each(s, lambda i: _stand_in(i) if isinstance(i, TensorType) else i) for s in step.inputs]
        kernel = opdef.cpu_kernel
        touched = [self.values[i].type.dtype for i in (*step.read, *step.written)]
        low = opdef.shows is None and any(dtype in LOW_PRECISION for dtype in touched)
        writes = "out" in opdef.injected
        if low:
            kernel = in_float32(kernel, [self.schedule.types(o) for o in step.outputs], writes, self.wide)
            self.wide.make_room([self.values[i].type if isinstance(i, int) else i for i in flat(step.inputs)])
        out = [each(slot, lambda _: None) for slot in step.outputs] if low or writes else None
        return BoundStep(step, kernel, _gathered(inputs), attrs, out)

    def run(self, feeds: Mapping[str, np.ndarray], scope: Scope, return_numpy: bool = True) -> list[np.ndarray]:
        """Run all steps and return the fetched arrays, NumPy's in any case."""
        if scope.torn:
            check_whole(scope, self.schedule.persistables)
        scope.separate()
        facts = self.facts_in.get(scope)
        if facts is None or facts.version != scope.version:
            persistables = {i: self._placed(scope, name, i) for name, i in self.schedule.persistables.items()}
            facts = ScopeFacts(scope.version, [persistables.get(i) for i in range(len(self.values))])
            self.facts_in[scope] = facts
        env = facts.env.copy()
        for name, index in self.schedule.feeds.items():
            env[index] = facts.fed(feeds[name])
        origin = self.program.origin
        step_number, number, old, marks = scope.steps.get(origin, 0), -1, dict[str, Any](), profiling.clock()
        try:
            with np.errstate(all="ignore"), one_thread_in_blas() if self.large else nullcontext():
                for number, bound in enumerate(self.steps):
                    if marks is not None:
                        marks.append(perf_counter())
                    if number in self.undo.kept:
                        self.undo.keep(number, scope, old)
                    if facts.steady and number not in facts.lasting:
                        facts.lasting[number] = self._lasting(bound, env, facts)
                    lasting = facts.lasting.get(number)
                    if lasting is None or any(env[i] is not array for i, array in lasting[1]):
                        self._run_step(bound, env, scope, (self.seed, bound.step.op.number, step_number))
                    else:
                        self._call(bound.step, lasting[0], *[env[i] for i in lasting[2]])
            number = len(self.steps)
            scope.steps[origin] = step_number + 1  # a run that failed can be repeated with the same numbers
        except BaseException as problem:
            facts.steady = False
            if scope.steps.get(origin, 0) == step_number:  # else all is done, but for handing it over
                changed = scope.version != facts.version
                self.undo.after_failure(number, scope, old, problem, self.program.name, changed)
            if isinstance(problem, MemoryError) and 0 <= number < len(self.steps):  # for a copy that the Scope keeps
                raise self._failure(self.steps[number].step, problem) from problem
            raise
        if marks is not None:
            profiling.tell(self.program, self.schedule, peaks, marks)
        if scope.torn:
            self.undo.after_run(scope)
        facts.steady = scope.version == facts.version
        self.checked = True
        return [self._fetch(env, i) for i in self.fetched]

    def _lasting(self, bound: BoundStep, env: list[Any], facts: ScopeFacts) -> Any:
        """What `ScopeFacts.lasting` holds for a step; a kernel that knows how to use it has a function `for_arrays`."""
        step, prepare = bound.step, getattr(bound.kernel, "for_arrays", None)
        if prepare is None or bound.out is None:
            return None
        moved, moving = _moved(step, self.values)
        args, out = _arrays_of(bound.inputs, env), _arrays_of(bound.out, env)
        outputs, targets = flat(step.outputs), flat(out)
        call = prepare(*args, out=tuple(out), moving=moving, **bound.attrs) if len(outputs) == len(targets) else None
        if call is None:
            return None
        for output, array in zip(outputs, targets, strict=True):
            env[output] = facts.env[output] = array
        return call, [(i, env[i]) for i in step.read if self.values[i].buffer is not None], moved

    def _call(self, step: Step, kernel: Callable[..., Any], *arrays: np.ndarray) -> Any:
        try:
            return kernel(*arrays)
        except Exception as problem:
            raise self._failure(step, problem) from problem

    def _run_step(self, bound: BoundStep, env: list[Any], scope: Scope, rng: tuple[int, int, int]) -> None:
        step = bound.step
        args, attrs = _arrays_of(bound.inputs, env), bound.attrs
        if bound.out is not None:
            attrs = {**attrs, "out": tuple(_arrays_of(bound.out, env))}
        if "rng" in step.op.opdef.injected:
            attrs = {**attrs, "rng": rng}
        results = self._call(step, partial(bound.kernel, *args, **attrs))
        if len(step.outputs) == 1 or not isinstance(results, tuple):
            results = (results,)
        for index, result in zip(step.outputs, results, strict=True):
            if type(index) is int:  # NumPy turns 0-d results into scalars
                env[index] = result if type(result) is np.ndarray else np.asarray(result)
            elif index is not None:
                for i, r in zip(index, result, strict=True):
                    env[i] = r
        if not self.checked:
            self._check_results(step, env, args)
        array_of = scope.arrays.get
        for index, name in step.stored:
            array = env[index]
            if array is not array_of(name):
                owned = array.base is None and array.flags.writeable and not _is_input(array, args)
                scope.take(name, array if owned else array.copy())
                env[index] = scope.arrays[name]
        for i in step.freed:
            env[i] = None

    def _check_results(self, step: Step, env: list[Any], args: list[Any]) -> None:
        """In the first run: every kernel returns what the operator's inference promised, in memory of its own."""
        for i in step.written:
            value, array = self.values[i], env[i]
            if not isinstance(array, np.ndarray):
                array = env[i] = np.asarray(array)
            if array.shape != value.type.shape or array.dtype != value.type.dtype:
                raise KernelError(
                    f"kernel wrote {value.name} as {array.dtype}{list(array.shape)}, inferred was {value.type}",
                    call=self.schedule.call(step), site=step.op.site,
                )  # fmt: skip
            shared = value.root == i and value.buffer is None and not value.persistable
            if shared and any(np.may_share_memory(array, a) for a in _arrays(args)):
                raise KernelError(
                    f"kernel returned an input's memory as {value.name} without the trait view",
                    call=self.schedule.call(step), site=step.op.site,
                )  # fmt: skip

    def _failure(self, step: Step, problem: Exception) -> Exception:
        if isinstance(problem, MinigraphError):
            return problem.at(self.schedule.call(step), step.op.site)
        if isinstance(problem, MemoryError):
            return MEMORY(f"out of memory: {problem}", call=self.schedule.call(step), site=step.op.site)
        return KernelError(f"{type(problem).__name__}: {problem}", call=self.schedule.call(step), site=step.op.site)

    def _placed(self, scope: Scope, name: str, index: int) -> np.ndarray:
        """The array of a persistable; a large one that the program updates begins at a page from now on.

        A processor takes a read for one of what it is about to write if both lie as far from the start of a page, and
        waits. Arrays that are written and read together must not be some bytes apart.
        """
        array = self._from_scope(scope, name)
        if index not in self.updated or array.nbytes < LARGE or array.__array_interface__["data"][0] % PAGE == 0:
            return array
        placed = pages(array.nbytes).view(array.dtype).reshape(array.shape)
        placed[...] = array
        scope.take(name, placed)
        return placed

    def _from_scope(self, scope: Scope, name: str) -> np.ndarray:
        v, array = self.program.vars[name], scope.on_host(name)
        if array is None:
            raise UninitializedError(
                f"{v} has no value in the scope", site=v.site,
                hint="run the startup program first: exe.run(startup_program)",
            )  # fmt: skip
        if array.shape != v.shape or array.dtype != v.dtype:
            raise OTHER_VALUE(f"{v} is {array.dtype}{list(array.shape)} in the scope", site=v.site)
        return array

    def _fetch(self, env: list[Any], index: int) -> np.ndarray:
        """A copy, unless the array belongs to nobody else."""
        value, array = self.values[index], env[index]
        owned = value.producer >= 0 and value.buffer is None and not value.persistable and value.root == index
        twice = self.fetched.count(index) > 1
        return array if owned and array.base is None and not twice else _copied(array, value.name)


def _assigned(plan: Plan, arena: AddressRange | None) -> tuple[list[np.ndarray], int]:
    """What `assign_buffers` gives for a plan."""
    try:
        return assign_buffers(plan.values, plan.steps, plan.options, arena)
    except MemoryError as problem:
        fact = f"out of memory: no room for the temporaries of program {plan.program.name} ({problem})"
        raise MEMORY(fact, hint="a smaller batch") from None


def _owner(array: np.ndarray) -> Any:
    """What owns the memory of an array."""
    return array if array.base is None else array.base


def _copied(array: np.ndarray, name: str) -> np.ndarray:
    """A copy of a fetched value."""
    try:
        return array.copy()
    except MemoryError as problem:
        raise MEMORY(f"out of memory: no room for {name}, which is fetched ({problem})") from problem


def _may_use_threads_of_blas(bound: BoundStep, values: Sequence[Value]) -> bool:
    """Whether a step has an array of a size for which BLAS makes threads; updates call BLAS for short blocks only.

    To set the threads of BLAS and to set them back is work for each run that updates alone need not do.
    """
    touched = () if "optimizer" in bound.step.op.opdef.traits else (*bound.step.read, *bound.step.written)
    return any(values[i].type.size >= SMALL for i in touched)


def _moved(step: Step, values: Sequence[Value]) -> tuple[list[int], list[str]]:
    """The values that a step reads whose arrays are others in each run, and the names of their slots."""
    read = [(i, values[i]) for i in step.read]
    moved = [i for i, v in read if v.buffer is None and not (v.persistable and v.producer < 0)]
    slots = zip(step.op.opdef.input_names, step.inputs, strict=False)
    return moved, [name for name, slot in slots if not {*moved}.isdisjoint(flat([slot]))]


def _target(planned: Any, in_place: Any) -> Any:
    """Where a kernel writes: over the value that is updated in place, else into the planned array, if any."""
    if isinstance(planned, list):
        return [_target(*pair) for pair in zip(planned, in_place, strict=True)]
    return planned if in_place is None else in_place


def _gathered(slots: Sequence[Any]) -> list[Any]:
    """The slots of a step, those that list nothing but values as tuples: many of them are taken from a run faster."""
    return [tuple(s) if isinstance(s, list) and all(type(i) is int for i in s) else s for s in slots]


def _arrays_of(slots: Sequence[Any], env: list[Any]) -> list[Any]:
    """The slots of a step, as _gathered, with arrays in the places of values."""
    return [
        env[i] if type(i) is int
        else list(map(env.__getitem__, i)) if type(i) is tuple
        else [env[j] if type(j) is int else j for j in i] if type(i) is list
        else i
        for i in slots
    ]  # fmt: skip


def _stand_in(type: TensorType) -> np.ndarray:
    """An array with the shape and type of a value that is not read; it holds one zero."""
    return np.broadcast_to(np.zeros((), type.dtype), type.shape)


def _arrays(args: Sequence[Any]) -> Iterator[np.ndarray]:
    for a in args:
        yield from a if isinstance(a, list) else () if a is None else (a,)


def _is_input(array: np.ndarray, args: Sequence[Any]) -> bool:
    return any(array is a for a in args)
