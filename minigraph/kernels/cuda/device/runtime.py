"""Runtime: one GPU, as plans see it. Needs a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import cupy

from minigraph.errors.kinds import NO_KERNEL
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.call import Call, RunnableCall, Segment, Unsupported
from minigraph.kernels.cuda.record.workspace import Note, Settling, settled, settling
from minigraph.kernels.peaks import Peaks

from .autotune import Tuner
from .graph import CapturedGraph, CaptureError
from .lab import Lab
from .launcher import Launcher
from .memory import Memory
from .modules import Modules
from .nccl import communicator
from .peaks import peaks
from .products import Products
from .timing import times


class Runtime(Memory):
    """One GPU: its memory, its loaded kernels, its cuBLASLt, and what makes recorded calls run on it.

    target   the stream of calls that are made now
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.target = self.turn.target
        self.modules = Modules(self.device.arch)
        with cupy.cuda.Device(index):
            self.lanes = [cupy.cuda.Stream(non_blocking=True)]
            self._sides: list[cupy.cuda.Stream] = []
            self.products = Products(self)

    def settling(self, tf32: bool, autotune: bool = False) -> Settling:
        """What chooses variants, algorithms and workspaces of recorded calls, see workspace.py.

        autotune   choose variants by their times, see autotune.py
        """
        chosen = self.products.chosen(tf32)
        if not autotune:
            return settling(chosen)
        tuner = Tuner(Lab(self, tf32), chosen)

        def settle(calls: Sequence[Call], note: Note) -> list[Call]:
            decide = partial(tuner.decided, note=note)
            decided = [one for call in settled(calls, chosen, every=True) for one in call.decided(decide)]
            return settled(decided, chosen, every=True)

        return Settling(settle)

    def compiling(self, settling: Settling) -> Settling:
        """The same, but the kernels of calls that will run begin to be compiled while others are recorded."""

        def settle(calls: Sequence[Call], note: Note) -> list[Call]:
            made = settling.settle(calls, note)
            self.modules.begin(kernel for call in made for kernel in call.kernels())
            return made

        return Settling(settle, settling.sure)

    @property
    def compiled(self) -> int:
        """How many kernels had to be compiled until now."""
        return self.modules.compiled

    def compile(self, kernels: Iterable[tuple[str, str]]) -> None:
        """Compile kernels, given as (source, function), so that calls which launch them need not wait."""
        self.modules.compile(kernels)

    def runnable(self, binder: Binder, tf32: bool) -> list[RunnableCall]:
        """The binder's calls as functions without arguments; all addresses are known by now."""
        binder.write_tables(self)
        recorded = list(binder.running())
        self.compile(kernel for _, call in recorded for kernel in call.kernels())
        launcher = Launcher(self, tf32, binder.counter)
        made: list[RunnableCall] = []
        for position, call in recorded:
            try:
                runnable = call.runnable(launcher)
            except Unsupported as why:
                raise NO_KERNEL(f"cuBLASLt cannot compute this product: {why}") from None
            for one in runnable:
                one.position = position
            made += runnable
        binder.notes += [note for note in dict.fromkeys(launcher.notes) if note not in binder.notes]
        return made

    def sides(self, count: int) -> Sequence[cupy.cuda.Stream]:
        """Streams besides the one that calls go to, for calls that take several: the same ones for all of them."""
        with cupy.cuda.Device(self.device.index):
            while len(self._sides) < count:
                self._sides.append(cupy.cuda.Stream(non_blocking=True))
        return self._sides[:count]

    def captured(self, parts: Sequence[Segment], loosened: bool = False) -> Callable[[], None] | str:
        """A function that launches the graph of these parts, or why there is none; programmatic_launch.py: loosened."""
        while len(self.lanes) <= max((part.lane for part in parts), default=0):
            self.lanes.append(cupy.cuda.Stream(non_blocking=True))
        waiting = self.modules.waiting if loosened else ()
        try:
            return CapturedGraph(parts, self.target, self.lanes, self.modules.function, waiting)
        except CaptureError as why:
            return str(why)

    def handed_over(self) -> None:
        """A run with collectives was given to the target: somebody watches whether it ends."""
        ranks = communicator(self.device.index)
        ranks.check()
        ranks.handed_over(self.target.ptr)

    def timed(self, calls: Sequence[Callable[[], None]], names: Sequence[str]) -> list[float]:
        """Run the calls one after the other; seconds of each, see timing.py."""
        return times(calls, names, self)

    def peaks(self, tf32: bool) -> Peaks:
        """What this GPU can do at the most."""
        return peaks(self.device.index, tf32)


_one_makes = threading.Lock()
_runtimes: dict[int, Runtime] = {}


def runtime(index: int) -> Runtime:
    """The Runtime of GPU `index`, made once per process."""
    with _one_makes:
        if index not in _runtimes:
            _runtimes[index] = Runtime(index)
        return _runtimes[index]
