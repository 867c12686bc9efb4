"""In which order a GPU gets work, and on which stream. Needs a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

current_device, current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream


class Target:
    """The stream that calls go to: that of the StreamTurn, or in its place one that captures them."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class StreamTurn:
    """`with turn:` around whatever gives work to a GPU: its device is the current one, and all work is in order.

    Work of all threads comes one after the other: after what the caller's stream was given before, and before what that
    stream is given later. It simply goes to the caller's stream, CuPy's current one, which is kept until another one
    takes its place, so most runs need no event. A stream of our own for all of them would have to wait for the caller's
    and the other way round, which keeps the host 2 us longer (bench/results/studies/streams.json). It is so for
    foreign streams: those that somebody else may destroy, that are another one in each thread, or of a turn inside one.

    own      the stream that serves foreign ones; memory of the Runtime is taken for it, so that no one else gets it
    stream   that to which work goes: the caller's of the latest turn, or `own`
    target   where calls read it
    """

    def __init__(self, index: int) -> None:
        self.index = index
        with cupy.cuda.Device(index):
            self.stream = self.own = cupy.cuda.Stream(non_blocking=True)
            self._fence = cupy.cuda.Event(disable_timing=True)
        self.target = Target(self.own.ptr)
        self._lock = threading.RLock()
        self._begun: list[tuple[int, Any]] = []  # of turns that have not ended: device before, foreign stream if any
        self._keeps = True

    def __enter__(self) -> None:
        device = current_device()
        self._lock.acquire()
        try:
            if device == self.index and current_stream(device) is self.stream:
                self._begun.append((device, None))
                return
            cupy.cuda.runtime.setDevice(self.index)
            self._begun.append((device, self._come(current_stream(self.index))))
        except BaseException:
            self._put_back(device)
            raise

    def __exit__(self, *_: object) -> None:
        device, foreign = self._begun.pop()
        try:
            if foreign is not None:
                self._after(foreign, self.stream)
        finally:
            self._put_back(device)

    @contextmanager
    def own_is_current(self) -> Iterator[None]:
        """`own` is CuPy's current stream inside the block; this turn's device must be the current one.

        After `with self.own:` that of the `with` around it would be current, not the one that the caller's use() chose.
        """
        before = current_stream(self.index)
        self.own.use()
        try:
            yield
        finally:
            before.use()

    def _put_back(self, device: int) -> None:
        try:
            if device != self.index:
                cupy.cuda.runtime.setDevice(device)
        finally:
            self._lock.release()

    def _come(self, caller: Any) -> Any:
        """Work goes to the caller's stream from now on, or comes after it; returns it where it is foreign."""
        if caller is self.stream:
            return None
        kept = self._keeps and (caller.ptr == 0 or (isinstance(caller, cupy.cuda.Stream) and caller.device_id >= 0))
        if not self._begun:
            self._go_to(caller if kept else self.own)
        if caller is self.stream:
            return None
        self._after(self.stream, caller)
        return caller

    def _go_to(self, stream: Any) -> None:
        if stream is not self.stream:
            self._after(stream, self.stream)
            self.stream, self.target.ptr = stream, stream.ptr

    def join(self) -> None:
        """What comes now is after all that the caller's stream was given, also since the turn began."""
        foreign = self._begun[-1][1] if self._begun else None
        if foreign is not None:
            self._after(self.stream, foreign)

    def stay(self) -> None:
        """Every caller is foreign from now on: for memory whose owner knows only work of the stream that took it."""
        if self._keeps:
            self._keeps, before = False, self.stream
            self._go_to(self.own)
            self._begun = [(device, before if foreign is None else foreign) for device, foreign in self._begun]

    def _after(self, later: Any, earlier: Any) -> None:
        """What one stream is given from now on waits for what another one has been given."""
        self._fence.record(earlier)
        later.wait_event(self._fence)
