"""Paged states: a step of AdamW whose moments lie in pinned memory of the host, on one GPU.

    python -m bench gpu_paged

Floor: the time in which the bus carries the states to the card and back, both ways at once, as two copies of large
pieces take it in the same turns. Arms: paged, with blocks of other sizes, everything on the card, managed memory. In
the last row ballast leaves less free memory on the card than the states have. Each row's parameters are compared bit by
bit with those of a step on the card.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .gpu_optimizers import (
    ADAMW,
    LEVELS,
    UpdateArm,
    UpdateCase,
    Values,
    _adamw,
    _arrays,
    gpt2_shapes,
)
from .gpu_report import Row, end, measure, medians, report_of, table_of
from .gpu_timing import Gpu, GpuBench, turns_of
from .harness import summarized
from .turns import in_turns

SIDE = (4096, 4096)  # one tensor: 64 MiB of each state
PIECE = 256 << 20  # bytes of a copy of the bus
LEFT = 2 << 30  # bytes that the ballast leaves free
WAYS = {"blocks of 4 MiB": {"BLOCK": 4 << 20}, "blocks of 64 MiB": {"BLOCK": 64 << 20},
        "a ring of two": {"PLACES": 2}}  # fmt: skip


@dataclass(frozen=True)
class PagedCase:
    """A row; `beyond`: the states do not fit into what is free on the card, so only `paged` runs."""

    title: str
    shapes: list[tuple[int, ...]]
    beyond: bool = False

    @property
    def states(self) -> int:
        """Bytes of both moments."""
        return 8 * sum(int(np.prod(shape)) for shape in self.shapes)

    def update(self, count: int | None = None) -> UpdateCase:
        return UpdateCase(self.title, "adamw", self.shapes[:count], 7, ADAMW, _adamw)


CASES = (
    PagedCase("GPT-2, 148 tensors, 1 GB of states", gpt2_shapes()),
    PagedCase("8 tensors of 4096 x 4096, 1 GB", [SIDE] * 8),
    PagedCase("32 tensors of 4096 x 4096, 4.3 GB", [SIDE] * 32),
    PagedCase("64 tensors of 4096 x 4096, 8.6 GB, 2 GiB free", [SIDE] * 64, beyond=True),
)


class Bus:
    """Copies between pinned memory and the card: to it, from it, and both at once."""

    def __init__(self, gpu: Gpu) -> None:
        self.runtime, self.nbytes = gpu.runtime, PIECE
        host = [gpu.runtime.paged(np.zeros(PIECE, np.uint8)) for _ in range(2)]
        card = [gpu.runtime.allocate(PIECE) for _ in range(2)]
        launcher = importlib.import_module("minigraph.kernels.cuda.device.launcher").Launcher(gpu.runtime, False)
        segment = importlib.import_module("minigraph.kernels.cuda.record.call").Segment
        (come_from, go_to), (come_to, go_from) = ([a.data.ptr for a in pair] for pair in (host, card))
        self.come = launcher.copy(come_to, come_from, PIECE)
        self.go = launcher.copy(go_to, go_from, PIECE)
        self.both = launcher.beside([segment([self.come], 1), segment([self.go], 2)])
        self.memory = host, card

    def arms(self) -> dict[str, Callable[[], None]]:
        return {"to the card": self.come, "to the host": self.go, "both ways": self.both}


@contextmanager
def settings(values: Mapping[str, int]) -> Iterator[None]:
    """How states are paged by plans that are made inside."""
    module = importlib.import_module("minigraph.kernels.cuda.optimizer.paged")
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def ballast(gpu: Gpu, spare: int) -> Iterator[None]:
    """Take the card's memory but for so many bytes; nothing for 0."""
    runtime = gpu.cupy.cuda.runtime
    gpu.release(None)
    taken = runtime.malloc(max(1, runtime.memGetInfo()[0] - spare)) if spare else 0
    try:
        yield
    finally:
        if taken:
            runtime.free(taken)


class Again:
    """Another plan for the program and the arrays of an UpdateArm."""

    def __init__(self, gpu: Gpu, first: UpdateArm) -> None:
        plans = importlib.import_module("minigraph.runtime.cuda.plan")
        program, options = first.compiled.after, first.compiled.options
        self.plan, self.scope = plans.CudaPlan(program, {}, (), False, 0, gpu.runtime, False, options), first.scope
        self()

    def __call__(self) -> None:
        self.plan.run({}, self.scope)


def measured(gpu: Gpu, bus: Bus, case: PagedCase, rounds: int) -> dict[str, Any]:
    """Check the parameters after a step, then time all arms in turns."""
    fused, count = LEVELS["fused"], len(case.shapes)
    distinct: Values = _arrays(gpu.cupy, case.shapes[:1] if case.beyond else case.shapes)
    values = distinct * count if case.beyond else distinct  # all tensors alike: one on the card tells of all
    card = UpdateArm(gpu, case.update(len(distinct)), distinct, fused)
    expected = card.results() * (count // len(distinct))
    with ballast(gpu, LEFT + case.states if case.beyond else 0):  # parameters and gradients have as many bytes
        paged = UpdateArm(gpu, case.update(), values, fused, "paged", on_host=True)
        if not all(bool((a == b).all()) for a, b in zip(paged.results(), expected, strict=True)):
            raise ArithmeticError("paged differs from a step on the card")
        free = gpu.cupy.cuda.runtime.memGetInfo()[0]
        if case.beyond and free > case.states:
            raise MemoryError(f"{free} bytes are free, the states have {case.states}")
        report = paged.compiled.memory_report(place=gpu.mg.CUDAPlace(0))
        arms: dict[str, Callable[[], Any]] = {"paged": paged}
        if not case.beyond:
            for name, how in WAYS.items():
                with settings(how):
                    arms |= {name: Again(gpu, paged)}
            arms |= {"on the card": card, "managed": UpdateArm(gpu, case.update(), values, fused, "unified")}
        for arm in arms.values():
            arm()  # the second run is captured
        arms |= bus.arms()
        times = in_turns(turns_of(gpu, None, {name: [arm] for name, arm in arms.items()}), rounds)
    return {
        "title": case.title, "states": case.states, "paged": report.on_host, "planned": report.planned,
        "free_on_the_card": free, "copied": bus.nbytes, "remarks": [text for _, text in paged.plan.program.notes],
        "milliseconds": {name: summarized(ms) for name, ms in times.items()},
    }  # fmt: skip


@dataclass(frozen=True)
class PagedBench(GpuBench):
    """The rows of CASES."""

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure, print the table and write bench/results/gpu_paged.json."""
        gpu = Gpu()
        bus, report = Bus(gpu), report_of(self, gpu, command, rounds, only)
        cases = [case for case in CASES if only in case.title]
        measure(report, (({"title": c.title}, partial(measured, gpu, bus, c, rounds)) for c in cases), gpu, None)
        end(report, partial(table_of, lines_of=lines_of))


def lines_of(row: Row) -> Iterator[str]:
    """The bus, its floor, and the arms: ms, share of the floor, times a step on the card."""
    ms = medians(row)
    rates = {name: row["copied"] / ms.pop(name) for name in ("to the card", "to the host", "both ways")}
    floor = row["paged"] / rates["both ways"]
    bus = ", ".join(f"{name} {rate / 1e6:.1f} GB/s" for name, rate in rates.items())
    paged, free = (row[name] / 1e9 for name in ("paged", "free_on_the_card"))
    yield f"{row['title']}; {paged:.2f} GB paged, {free:.2f} GB free; {bus} each; floor {floor:.2f} ms"
    for name, t in ms.items():
        times = f"{t / ms['on the card']:8.1f} x on the card" if "on the card" in ms else ""
        yield f"  {name:18} {t:10.3f} ms {100 * floor / t:6.1f} % of the bus {times}"


BENCH = PagedBench("gpu_paged", "AdamW with paged states", lambda: (), ())
