"""MemoryReport: what the temporaries of one run need, when, and for which operators. Needs no GPU.

    print(compiled.memory_report({"x": [256, 784], "y": [256, 1]}, fetch_list=[loss]))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph import cuda
from minigraph.errors import FeedError, require, shortened
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.program import Operator, Program, Variable
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.bind import BoundProgram
from minigraph.runtime.cuda.bind_checked import program_class
from minigraph.types import CPUPlace, CUDAPlace, Place, TensorType

from .memory import Life, most_live, rounded
from .options import RunOptions
from .schedule import Value

SHOWN = 10  # residents and operators in the text
MIB = 2**20


@dataclass(frozen=True)
class Resident:
    """A block of memory: a value, or scratch memory of an operator.

    first, last   steps (on a GPU calls) during which it is needed, both included
    op            the operator that writes it first; None for feeds
    values        bytes of all values that lie in it, those that an operator writes over its input included
    """

    name: str
    type: str
    nbytes: int
    values: int
    first: int
    last: int
    op: Operator | None
    scratch: bool = False


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of one run's temporaries.

    planned       what the Plan takes;  live: what is needed at one time at the most, so no plan takes less
    apart         what it would be if no two values shared memory
    persistable   parameters and states, which the Scope holds besides;  fed: feeds, part of `planned`
    residents     all blocks, largest first;  at: the step of the peak, in which `running` runs
    """

    program: str
    place: Place
    feeds: Mapping[str, TensorType]
    planned: int
    live: int
    apart: int
    persistable: int
    fed: int
    residents: tuple[Resident, ...]
    at: int
    running: tuple[Operator, ...]

    @property
    def saved(self) -> int:
        """Bytes that sharing saves."""
        return self.apart - self.planned

    def at_peak(self) -> list[Resident]:
        """The blocks that are needed when most memory is, largest first."""
        return [r for r in self.residents if r.first <= self.at <= r.last]

    def by_operator(self) -> dict[str, int]:
        """Bytes at the peak by the type of the operator that wrote them, largest first."""
        sums: dict[str, int] = {}
        for r in self.at_peak():
            who = "feeds" if r.op is None else r.op.type + (", scratch" if r.scratch else "")
            sums[who] = sums.get(who, 0) + r.nbytes
        return dict(sorted(sums.items(), key=lambda pair: -pair[1]))

    def __str__(self) -> str:
        feeds = ", ".join(f"{name} {type}" for name, type in self.feeds.items()) or "none"
        lines = [
            f"memory of program {self.program} on {self.place}, feeds: {feeds}",
            f"  planned             {_mib(self.planned)}, of them feeds {self.fed / MIB:.2f}",
            f"  live at the most    {_mib(self.live)}",
            f"  without sharing     {_mib(self.apart)}, sharing saves {self.saved / MIB:.2f}",
            f"  kept in the Scope   {_mib(self.persistable)}",
        ]
        lines += [f"  the peak is in      {op.type}    {op.site or ''}".rstrip() for op in self.running]
        peak = self.at_peak()
        lines += [f"    {_mib(r.nbytes)}  {r.name}: {r.type}" for r in peak[:SHOWN]]
        rest = peak[SHOWN:]
        lines += [f"    {_mib(sum(r.nbytes for r in rest))}  {len(rest)} others"] if rest else []
        lines.append("  at the peak, by operator")
        lines += [f"    {_mib(nbytes)}  {who}" for who, nbytes in list(self.by_operator().items())[:SHOWN]]
        return "\n".join(lines)


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:9.2f} MiB"


def feed_types(program: Program, feed: Mapping[Any, Any]) -> dict[str, TensorType]:
    """Types of the feeds {name or Variable: array or shape}; where all sizes are known they need not be given."""
    kind = type(feed).__name__
    require(isinstance(feed, Mapping), f"feed is a dict {{name: array or shape}}, not a {kind}", FeedError)
    given = {program.fed_variable(name).name: value for name, value in feed.items()}
    types = {}
    for v in program.vars.values():
        if v.name in given:
            shape = _sizes(v, given[v.name])
        elif v.is_data and -1 not in v.shape:
            shape = v.shape
        else:
            read = v.is_data and any(v.name in op.input_arg_names for op in program.ops)
            require(
                not read, f"the memory of this program depends on the shape of {v}", FeedError,
                f"give it: memory_report({{{v.name!r}: [...]}})",
            )  # fmt: skip
            continue
        fits = len(shape) == v.ndim and all(s in (-1, n) for s, n in zip(v.shape, shape, strict=True))
        require(fits, f"feed {v.name} must be {v.type}, has shape {shortened(str(list(shape)))}", FeedError)
        types[v.name] = TensorType(shape, v.dtype)
    return types


def _sizes(v: Variable, value: Any) -> tuple[int, ...]:
    """The shape of an array, or the one that was given in its place."""
    shape = getattr(value, "shape", value)
    known = isinstance(shape, (list, tuple)) and all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in shape
    )
    require(
        known, f"feed {v.name}: {shortened(repr(shape))} is not a shape, which is a list of sizes >= 0", FeedError,
        f"give an array or its shape: memory_report({{{v.name!r}: [...]}})",
    )  # fmt: skip
    sizes = tuple(int(n) for n in shape)
    require(
        math.prod(sizes) < 2**63, f"feed {v.name}: {shortened(repr(shape))} has more than 2^63 elements", FeedError
    )
    return sizes


def memory_report(
    program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], place: Place, options: RunOptions
) -> MemoryReport:
    """The report of the Plan that an Executor at `place` would make.

    Where that GPU is not there, it is that of an H200, whose products all have the largest workspace.
    """
    if isinstance(place, CPUPlace):
        residents, planned, running = _on_cpu(Plan(program, feeds, fetches, options=options))
    else:
        residents, planned, running = _on_gpu(_bound(program, feeds, fetches, place, options))
    lives = [Life(r.nbytes, r.first, r.last) for r in residents]
    steps = sorted({life.first for life in lives})
    at = max(steps, key=lambda t: sum(rounded(n) for n, a, b in lives if a <= t <= b), default=-1)
    persistable = [v for v in program.vars.values() if v.persistable]
    return MemoryReport(
        program.name, place, feeds, planned, most_live(lives), max(planned, sum(r.values for r in residents)),
        sum(v.type.nbytes for v in persistable), sum(r.nbytes for r in residents if r.op is None),
        tuple(sorted(residents, key=lambda r: -r.nbytes)), at, running(at),
    )  # fmt: skip


def _bound(
    program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], place: CUDAPlace, options: RunOptions
) -> BoundProgram:
    tf32 = cuda.allows_tf32()
    if not cuda.is_available() or place.device_id >= cuda.device_count():
        return program_class(options)(program, feeds, fetches, options=options, tf32=tf32)
    runtime = cuda.runtime(place)
    settling = runtime.settling(tf32, options.autotune)
    return program_class(options)(
        program, feeds, fetches, device=runtime.device, options=options, settling=settling, tf32=tf32
    )


def _on_gpu(bound: BoundProgram) -> tuple[list[Resident], int, Any]:
    names: dict[int, list[int]] = {}
    for i, value in enumerate(bound.schedule.values):
        names.setdefault(id(owner(bound.buffers[i])), []).append(i)
        assert value.type is not None
    steps = bound.schedule.steps
    ops = {id(b): steps[position].op for position, own in enumerate(bound.binder.scratches) for b in own}
    residents = []
    for buffer, life in bound.blocks:
        shown = names.get(id(buffer))
        if shown is None:
            op, name, type_ = ops[id(buffer)], f"scratch of {ops[id(buffer)].type}", f"{buffer.nbytes} bytes"
            own = buffer.nbytes
        else:
            held = [bound.schedule.values[i] for i in shown]
            op = steps[held[0].producer].op if held[0].producer >= 0 else None
            name, type_ = _named([v.name for v in held]), str(held[0].type)
            own = sum(v.type.nbytes for i, v in zip(shown, held, strict=True) if v.root == i)
        residents.append(Resident(name, type_, buffer.nbytes, own, life.first, life.last, op, shown is None))

    def running(at: int) -> tuple[Operator, ...]:
        if not 0 <= at < len(bound.order):
            return ()
        return tuple(step.op for step, span in zip(steps, bound.spans, strict=True) if bound.order[at] in span)

    return residents, bound.arena_bytes + bound.mailbox_bytes + bound.constant_bytes, running


def _on_cpu(plan: Plan) -> tuple[list[Resident], int, Any]:
    steps = plan.schedule.steps
    blocks: list[list[Value]] = []
    latest: dict[int, list[Value]] = {}  # what lies in a buffer now
    for i, value in enumerate(plan.values):
        if value.persistable or value.producer < 0 or value.root != i:
            continue
        block = latest.get(value.buffer, []) if value.buffer is not None else []
        if not block or block[-1].last_use < value.producer:  # else it is written over what dies there
            blocks.append(block := [])
        block.append(value)
        if value.buffer is not None:
            latest[value.buffer] = block
    residents = []
    for block in blocks:
        first, last = block[0].producer, max(block[-1].last_use, block[-1].producer)
        own, op, name = block[0].type, steps[first].op, _named([v.name for v in block])
        values = sum(v.type.nbytes for v in block)
        residents.append(Resident(name, str(own), own.nbytes, values, first, last, op))
    apart = [
        Life(r.nbytes, r.first, r.last) for r, block in zip(residents, blocks, strict=True) if block[0].buffer is None
    ]
    planned = sum(rounded(b.nbytes) for b in plan.buffers) + most_live(apart)
    return residents, planned, lambda step: (steps[step].op,) if 0 <= step < len(steps) else ()


def _named(names: Sequence[str]) -> str:
    """Names of values that lie in one block, the inner ones of many left out."""
    own = list(dict.fromkeys(names))
    return ", ".join(own if len(own) < 4 else [own[0], f"{len(own) - 2} others", own[-1]])
