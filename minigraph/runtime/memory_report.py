"""MemoryReport: what the temporaries of one run need, when, and for which operators. Needs no GPU.

    print(compiled.memory_report({"x": [256, 784], "y": [256, 1]}, fetch_list=[loss]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minigraph.program import Operator, Program
from minigraph.program.text.html import folded, table, text
from minigraph.types import TensorType

from .backend import PlannedMemory, Resident
from .control.ahead import WHOLE, ahead
from .devices import backend_of
from .memory import Life, peak
from .options import RunOptions
from .parallel.traffic import Traffic, traffic

SHOWN = 10  # residents and operators in the text
MIB = 2**20


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of one run's temporaries.

    planned       what the Plan takes;  live: what is needed at one time at the most, so no plan takes less
    apart         what it would be if no two values shared memory
    persistable   parameters and states, which the Scope holds besides;  on_host: of them paged states, in pinned memory
                  of the host
    fed           feeds, part of `planned`
    traffic       what a rank sends in a step, None where one rank runs the program
    residents     all blocks, largest first;  at: the step of the peak, in which `running` runs
    parts         {piece or block: bytes planned} of a program that branches and loops cut: each has memory of its own,
                  and their steps stand one behind the other here; None where a run decides its sizes
    """

    program: str
    place: Any
    feeds: Mapping[str, TensorType]
    planned: int
    live: int
    apart: int
    persistable: int
    fed: int
    residents: tuple[Resident, ...]
    at: int
    running: tuple[Operator, ...]
    on_host: int = 0
    traffic: Traffic | None = None
    parts: Mapping[str, int | None] = field(default_factory=dict)

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
            f"  kept in the Scope   {_mib(self.persistable)}" + self._paged(),
        ]
        lines += [f"    {_mib(n) if n is not None else '   a run decides'}  {part}" for part, n in self.parts.items()]
        lines += [f"  ranks               {self.traffic.line()}"] if self.traffic is not None else []
        lines += [f"  the peak is in      {op.type}    {op.site or ''}".rstrip() for op in self.running]
        peak = self.at_peak()
        lines += [f"    {_mib(r.nbytes)}  {r.name}: {r.type}" for r in peak[:SHOWN]]
        rest = peak[SHOWN:]
        lines += [f"    {_mib(sum(r.nbytes for r in rest))}  {len(rest)} others"] if rest else []
        lines.append("  at the peak, by operator")
        lines += [f"    {_mib(nbytes)}  {who}" for who, nbytes in list(self.by_operator().items())[:SHOWN]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the planned peak, and folded what lives at it."""
        rows = [(r.name, str(r.type), _mib(r.nbytes), f"{r.first} to {r.last}") for r in self.at_peak()]
        title = f"memory of program {self.program} on {self.place}: {_mib(self.planned).strip()} planned"
        peak = folded(f"{len(rows)} blocks at the peak", table(("value", "type", "size", "steps"), rows))
        return folded(title, peak + folded("all figures", text(str(self))), is_open=True)

    def _paged(self) -> str:
        rest = self.persistable - self.on_host
        return f", on the GPU {rest / MIB:.2f}, paged on the host {self.on_host / MIB:.2f}" if self.on_host else ""


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:9.2f} MiB"


def memory_report(
    program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], place: Any, options: RunOptions,
    ranks: int = 1,
) -> MemoryReport:  # fmt: skip
    """The report of the plan that an Executor at `place` would make; that device need not be there."""
    memory, parts = _planned(program, feeds, fetches, place, options)
    residents = memory.residents
    lives = [Life(r.nbytes, r.first, r.last) for r in residents]
    live, at = peak(lives)
    persistable = [v for v in program.vars.values() if v.persistable]
    apart = max(memory.nbytes, sum(r.values for r in residents))
    return MemoryReport(
        program.name, place, feeds, memory.nbytes, live, apart,
        sum(v.type.nbytes for v in persistable), sum(r.nbytes for r in residents if r.op is None),
        tuple(sorted(residents, key=lambda r: -r.nbytes)), at, memory.running(at), memory.on_host,
        traffic(program, ranks), parts,
    )  # fmt: skip


def _planned(
    program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], place: Any, options: RunOptions
) -> tuple[PlannedMemory, dict[str, int | None]]:
    """What all plans of a program take, their steps one behind the other; and each part's bytes, if it is cut."""
    parts, residents, running = dict[str, int | None](), list[Resident](), list[tuple[Operator, ...]]()
    nbytes = on_host = 0
    for part in ahead(program, feeds, fetches):
        if part.unknown:
            parts[part.title] = None
            continue
        memory = backend_of(place).memory(part.program, part.feeds, part.fetches, options)
        if part.title == WHOLE:
            return memory, {}
        begin, steps = len(running), 1 + max((r.last for r in memory.residents), default=0)
        residents += [replace(r, first=r.first + begin + 1, last=r.last + begin + 1) for r in memory.residents]
        running += [memory.running(at) for at in range(-1, steps)]
        parts[part.title] = memory.nbytes
        nbytes, on_host = nbytes + memory.nbytes, on_host + memory.on_host
    return PlannedMemory(residents, nbytes, lambda at: running[at] if running else (), on_host), parts
