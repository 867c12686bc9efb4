"""Autotune: of several ways to compute the same, one that is measured to be clearly faster, remembered on disk.

    a product    cuBLASLt's candidates, of several workspace sizes
    a Choice     its variants, each with its own best products: an epilogue, or a kernel after the product

All are timed on scratch memory with random numbers, never on a program's values. A measurement is kept in a
JSON file named by a hash of everything that it depends on, beside the compiled kernels: another process does
not measure again, and sums stay the same from run to run. A file that cannot be read counts as none.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from minigraph.kernels.cuda.record import compile
from minigraph.kernels.cuda.record.binder import workspace_of
from minigraph.kernels.cuda.record.buffer import Buffer, alignment, lies_as
from minigraph.kernels.cuda.record.call import (
    Call,
    Run,
    RunnableCall,
    Unsupported,
    every_call,
    facts,
)
from minigraph.kernels.cuda.record.calls import Choice, Gemm
from minigraph.kernels.cuda.record.moved import owners

from .cublaslt import LibraryError, LtPlan

FORMAT = 4  # of the files
SECONDS = 0.5  # for one product or choice; what was not tried by then is left out
FINALISTS, ROUNDS = 4, 7  # the fastest of the first round, timed again in turns
STAYS = 1.05  # times the least: what would run without autotune stays, since times alone, in L2, say no more of a step
CLOSE = 1.01  # times the least: of other algorithms as fast as that the one with the smallest workspace is taken
ANYWHERE = 1 << 40  # an address for questions that depend on its alignment only

K = TypeVar("K", bound=Hashable)


class Bench(Protocol):
    """What measures: the GPU, see lab.py."""

    handle: int
    tf32: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        """What times depend on besides the calls: GPU, driver, library."""
        ...

    def twins(self, calls: Sequence[Call]) -> AbstractContextManager[list[Any]]:
        """The calls on scratch memory; a MemoryError where there is none."""
        ...

    def product(self, plan: LtPlan) -> Callable[[], None]:
        """What gives a product to the GPU, with the algorithm that its plan has then."""
        ...

    def trial(self, work: Sequence[Run]) -> Callable[[], float]:
        """A function that does this work and tells how many milliseconds it takes."""
        ...

    def runnable(self, calls: Sequence[Call], tuner: Tuner) -> list[RunnableCall]:
        """The calls made runnable; Unsupported where the library lacks one of them."""
        ...

    def agrees(self, plan: LtPlan, reference: bytes) -> bool:
        """Whether what is chosen repeats its bits, computes what `reference` computes, and keeps a NaN."""
        ...


class Tuner:
    """Answers which algorithm, which variant; measures what nobody measured before."""

    def __init__(self, lab: Bench) -> None:
        self.lab = lab

    def algorithm(self, call: Gemm) -> bytes | None:
        """cuBLASLt's own algorithm or a clearly faster one; None where there is no memory to measure in."""
        key = self._key("product", call)
        known = recall(key)
        if known is not None:
            return bytes.fromhex(known["algorithm"])
        room = Buffer((workspace_of(call),), np.dtype("uint8"), ANYWHERE)  # the program's own may be fitted already
        try:
            with self.lab.twins([replace(call, workspace=room)]) as (twin,):
                record = self._measured(twin)
        except MemoryError:
            return None
        remember(key, record)
        return bytes.fromhex(record["algorithm"])

    def _measured(self, call: Gemm) -> dict[str, Any]:
        """The algorithm to take, of those that can be trusted; `first` is the time of the library's own choice."""
        plan = LtPlan(self.lab.handle, call, self.lab.tf32, many=True)
        first = plan.candidates[0]

        def trial(algorithm: bytes) -> Callable[[], float]:
            plan.choose(algorithm)
            return self.lab.trial([self.lab.product(plan)])

        trials = {algorithm: partial(trial, algorithm) for algorithm in plan.candidates}
        times = dict(ranked(trials))
        least = min(times.values())

        def preference(algorithm: bytes) -> tuple[int, int]:
            if algorithm == first and times[first] <= STAYS * least:
                return 0, 0
            return (1, plan.needs[algorithm]) if times[algorithm] <= CLOSE * least else (2, 0)

        for algorithm in sorted(times, key=preference):
            plan.choose(algorithm)
            if self.lab.agrees(plan, first):
                return {"algorithm": algorithm.hex(), "milliseconds": times[algorithm], "first": times.get(first),
                        "candidates": len(times)}  # fmt: skip
        raise Unsupported(f"no algorithm of {call.epilogue} keeps NaN and repeats itself")

    def variant(self, choice: Choice, names: Sequence[str]) -> tuple[str, str]:
        """The first of the named variants, or one that is clearly faster, and a remark for reports."""
        key = self._key("choice", [[name, choice.variants[name]] for name in names])
        record = recall(key)
        if record is None or not set(record["milliseconds"]) <= set(names):
            try:
                record = {"milliseconds": dict(self._timed_variants(choice, names))}
            except MemoryError:
                return names[0], "not timed, there is no memory to do it in"
            remember(key, record)
        times = sorted(record["milliseconds"].items(), key=lambda item: item[1])
        remark = "timed: " + ", ".join(f"{name} {ms:.4f} ms" for name, ms in times)
        (best, least), usual = times[0], names[0]
        if usual == best or record["milliseconds"].get(usual, math.inf) > STAYS * least:
            return best, remark
        return usual, f"{remark}; {usual} stays, as less than {STAYS - 1:.0%} would be gained"

    def decided(self, choice: Choice, note: Callable[[str], None]) -> list[Call]:
        """The calls of one variant, so that none keeps memory for others; what is in it is decided before.

        note   is told of what was timed, and what was left out
        """
        known, said = dict[str, list[Call]](), dict[str, list[str]]()
        for name, calls in choice.variants.items():
            said[name] = []
            inner = partial(self.decided, note=said[name].append)
            try:
                decided = [one for call in calls for one in call.decided(inner)]
                for product in (product for one in every_call(decided) for product in one.products()):
                    self.algorithm(unplaced(product))
                known[name] = decided
            except Unsupported as why:
                note(f"not by {name}: {why}")
        if not known:
            return [choice]
        best, remarks = next(iter(known)), list[str]()
        if len(known) > 1:
            best, remark = self.variant(unplaced(Choice(known, choice.step)), list(known))
            remarks.append(remark)
        for remark in (*remarks, *said[best]):
            note(remark)
        return known[best]

    def _timed_variants(self, choice: Choice, names: Sequence[str]) -> list[tuple[str, float]]:
        with self.lab.twins([choice]) as (twin,):
            work = {name: self.lab.runnable(twin.variants[name], self) for name in names}
            return ranked({name: partial(self.lab.trial, work[name]) for name in names})

    def _key(self, kind: str, what: Any) -> str:
        known = {"format": FORMAT, "kind": kind, **self.lab.facts, "tf32": self.lab.tf32, "what": facts(what)}
        return json.dumps(known, sort_keys=True)


def ranked(trials: Mapping[K, Callable[[], Callable[[], float]]]) -> list[tuple[K, float]]:
    """(name, milliseconds) of the trials that run, the fastest first.

    Each runs once, in order, until time is up; then the best ones in turns, and their medians count.
    """
    start, running, first = time.perf_counter(), {}, {}
    for name, begin in trials.items():
        if first and time.perf_counter() - start > SECONDS:
            break
        try:
            running[name] = begin()
            first[name] = running[name]()
        except (LibraryError, Unsupported):  # proposed by the heuristic, refused when it runs or is captured
            continue
    if not first:
        raise Unsupported("no candidate runs")
    order = sorted(first, key=first.__getitem__)
    samples = {name: [first[name]] for name in order[:FINALISTS]}
    for _ in range(ROUNDS if len(samples) > 1 else 0):
        for name, times in samples.items():
            times.append(running[name]())
    medians = {name: statistics.median(times) for name, times in samples.items()}
    best = sorted(medians, key=medians.__getitem__)
    return [(name, medians.get(name, first[name])) for name in (*best, *order[FINALISTS:])]


# made-up addresses


def unplaced(call: Any) -> Any:
    """The product, or the choice, at made-up addresses: enough to ask the library which algorithm it would run."""
    return call.moved({id(b): Buffer(b.shape, b.dtype, ANYWHERE) for b in owners([call])})


def question(call: Gemm) -> tuple[Any, ...]:
    """What the library's answer about a product depends on: sizes, types and how operands lie in `unplaced`."""
    room = call.workspace.nbytes if call.workspace else 0
    return (
        call.m, call.n, call.k, call.trans_a, call.trans_b, call.epilogue, call.aux_ld, call.beta, call.batch,
        call.strides, room, *((b.dtype, lies_as(b)) for b in call.operands),
    )  # fmt: skip


def lies_as_assumed(call: Gemm) -> bool:
    """Whether operands lie as well as those of `unplaced`: what was chosen then can run."""
    return all(alignment(b.address) >= lies_as(b) for b in call.operands)


# on disk


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered for a key; None where there is nothing, or nothing that can be read."""
    try:
        record = json.loads(_path(key).read_text(encoding="utf-8"))
        fits = record["key"] == key and all(ms > 0 for ms in _times(record))
        return record if fits and bytes.fromhex(record.get("algorithm", "")) is not None else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _times(record: Mapping[str, Any]) -> list[float]:
    found = record["milliseconds"]
    return list(found.values()) if isinstance(found, dict) else [found]


def remember(key: str, record: Mapping[str, Any]) -> None:
    """Keep a record; where the folder cannot be written, the next process measures again."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        compile.write_whole(path, json.dumps({"key": key, **record}, indent=1).encode())
    except OSError:
        return


def _path(key: str) -> Any:
    return compile.CACHE / f"tuned-{hashlib.sha256(key.encode()).hexdigest()}.json"
