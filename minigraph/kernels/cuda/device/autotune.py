"""Autotune: of several ways to compute the same, one that is measured to be clearly faster, remembered on disk.

The variants of a Choice are timed on scratch memory with random numbers, never on a program's values. A measurement is
kept in a JSON file named by a hash of everything that it depends on, beside the compiled kernels: another process does
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
from functools import partial
from typing import Any, Protocol, TypeVar

from minigraph.kernels.cuda.record import compile
from minigraph.kernels.cuda.record.call import Call, Run, RunnableCall, Unsupported, every_call
from minigraph.kernels.cuda.record.calls import Choice
from minigraph.kernels.cuda.record.moved import unplaced
from minigraph.kernels.cuda.record.workspace import Chosen, Note

from .cublaslt import LibraryError

FORMAT = 5  # of the files
SECONDS = 0.5  # for one choice; what was not tried by then is left out
FINALISTS, ROUNDS = 4, 7  # the fastest of the first round, timed again in turns
STAYS = 1.05  # times the least: what would run without autotune stays, since times alone, in L2, say no more of a step

K = TypeVar("K", bound=Hashable)


class Bench(Protocol):
    """What measures: the GPU, see lab.py."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What times depend on besides the calls: GPU, driver, library."""
        ...

    def twins(self, calls: Sequence[Call]) -> AbstractContextManager[list[Any]]:
        """The calls on scratch memory; a MemoryError where there is none."""
        ...

    def runnable(self, calls: Sequence[Call]) -> list[RunnableCall]:
        """The calls made runnable; Unsupported where the library lacks one of them."""
        ...

    def trial(self, work: Sequence[Run]) -> Callable[[], float]:
        """A function that does this work and tells how many milliseconds it takes."""
        ...


class Tuner:
    """Answers which variant runs; measures what nobody measured before.

    chosen   the algorithm of a product, None where the library has none
    """

    def __init__(self, bench: Bench, chosen: Chosen) -> None:
        self.bench, self.chosen = bench, chosen

    def decided(self, choice: Choice, note: Note) -> list[Call]:
        """The calls of one variant, so that none keeps memory for others; what is in it is decided before.

        note   is told of what was timed, and what was left out
        """
        known, said = dict[str, list[Call]](), dict[str, list[str]]()
        for name, calls in choice.variants.items():
            said[name] = []
            decided = [one for call in calls for one in call.decided(partial(self.decided, note=said[name].append))]
            products = (product for call in every_call(decided) for product in call.products())
            if all(self.chosen(product) is not None for product in products):
                known[name] = decided
            else:
                note(f"not by {name}: cuBLASLt has no algorithm for a product of it")
        if not known:
            return [choice]
        best = next(iter(known))
        if len(known) > 1:
            best, remark = self.fastest(Choice(known, choice.step))
            note(remark)
        for remark in said[best]:
            note(remark)
        return known[best]

    def fastest(self, choice: Choice) -> tuple[str, str]:
        """The first of the variants, or one that is clearly faster, and a remark for reports."""
        usual, asked = next(iter(choice.variants)), unplaced(choice)
        key = json.dumps({"format": FORMAT, **self.bench.facts, "what": asked.facts()}, sort_keys=True)
        known = recall(key, choice.variants.keys())
        if known is None:
            try:
                known = dict(self._timed(asked))
            except MemoryError:
                return usual, "not timed, there is no memory to do it in"
            remember(key, known)
        times = sorted(known.items(), key=lambda item: item[1])
        remark = "timed: " + ", ".join(f"{name} {ms:.4f} ms" for name, ms in times)
        best, least = times[0]
        if usual == best or known.get(usual, math.inf) > STAYS * least:
            return best, remark
        return usual, f"{remark}; {usual} stays, as less than {STAYS - 1:.0%} would be gained"

    def _timed(self, choice: Choice) -> list[tuple[str, float]]:
        with self.bench.twins([choice]) as (twin,):
            return ranked({name: partial(self._trial, calls) for name, calls in twin.variants.items()})

    def _trial(self, calls: Sequence[Call]) -> Callable[[], float]:
        return self.bench.trial(self.bench.runnable(calls))


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
        except (LibraryError, Unsupported):  # the library has it, and refuses it when it runs or is captured
            continue
    if not first:
        raise Unsupported("no variant runs")
    order = sorted(first, key=first.__getitem__)
    samples = {name: [first[name]] for name in order[:FINALISTS]}
    for _ in range(ROUNDS if len(samples) > 1 else 0):
        for name, times in samples.items():
            times.append(running[name]())
    medians = {name: statistics.median(times) for name, times in samples.items()}
    best = sorted(medians, key=medians.__getitem__)
    return [(name, medians.get(name, first[name])) for name in (*best, *order[FINALISTS:])]


# on disk


def recall(key: str, names: Any) -> dict[str, float] | None:
    """The milliseconds that were remembered for a key; None where there is nothing, or nothing that can be read."""
    try:
        record = json.loads(_path(key).read_text(encoding="utf-8"))
        times = dict(record["milliseconds"])
        fits = record["key"] == key and times and times.keys() <= set(names) and all(ms > 0 for ms in times.values())
        return times if fits else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(key: str, times: Mapping[str, float]) -> None:
    """Keep a measurement; where the folder cannot be written, the next process measures again."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        compile.write_whole(path, json.dumps({"key": key, "milliseconds": times}, indent=1).encode())
    except OSError:
        return


def _path(key: str) -> Any:
    return compile.CACHE / f"tuned-{hashlib.sha256(key.encode()).hexdigest()}.json"
